/** What a handler can say of its job, wherever it runs. */

const MESSAGE_CHARACTERS = 1_024;

/** Throw RangeError for progress that the service would refuse: the heartbeat comes too late to say so. */
export function checkProgress(percent: number | undefined, message: string | undefined): void {
  if (percent !== undefined && !(percent >= 0 && percent <= 100)) {
    throw new RangeError(`percent has to be from 0 to 100, not ${percent}`);
  }
  if (message !== undefined && [...message].length > MESSAGE_CHARACTERS) {
    throw new RangeError(`the message has more than ${MESSAGE_CHARACTERS} characters`);
  }
}

/** Name a step of a job, the same for every attempt. */
export function stepKey(jobId: string, step: string): string {
  return `${jobId}:${step}`;
}
