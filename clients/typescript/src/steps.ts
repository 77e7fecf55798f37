/** What a handler can say of its job, wherever it runs. */

import { checkRange } from "./ranges.js";

const MESSAGE_CHARACTERS = 1_024;

/** Throw RangeError for progress that the service would refuse: the heartbeat comes too late to say so. */
export function checkProgress(percent: number | undefined, message: string | undefined): void {
  checkRange("percent", percent, 0, 100);
  if (message === undefined) return;
  if ([...message].length > MESSAGE_CHARACTERS) {
    throw new RangeError(`the message has more than ${MESSAGE_CHARACTERS} characters`);
  }
  if (/[\0\p{Surrogate}]/u.test(message)) {
    throw new RangeError("the message has U+0000 or half a character");
  }
}

/** Name a step of a job, the same for every attempt. */
export function stepKey(jobId: string, step: string): string {
  return `${jobId}:${step}`;
}
