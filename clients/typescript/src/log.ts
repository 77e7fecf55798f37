/** What a worker writes: a sentence and facts. Never a payload. */

import type { Weather } from "./calls.js";
import type { FencepostError } from "./errors.js";

/** Where log lines go. The console has this shape. */
export interface Log {
  info(message: string, facts?: Readonly<Record<string, unknown>>): void;
  warn(message: string, facts?: Readonly<Record<string, unknown>>): void;
  error(message: string, facts?: Readonly<Record<string, unknown>>): void;
}

/** Says once that the server is away, and once that it is back. */
export class LoggedWeather implements Weather {
  readonly #log: Log;
  #isAway = false;

  constructor(log: Log) {
    this.#log = log;
  }

  foul(failure: FencepostError): void {
    if (!this.#isAway) this.#log.warn("fencepost: the server is away", { failure: failure.message });
    this.#isAway = true;
  }

  fair(): void {
    if (this.#isAway) this.#log.info("fencepost: the server is back");
    this.#isAway = false;
  }
}
