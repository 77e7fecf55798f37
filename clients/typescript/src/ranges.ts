/** Numbers that JSON would make null of, which the service takes for none at all: refused where they are given. */

/** Throw RangeError for a number outside of a range; NaN is outside of any. Undefined is left to a default. */
export function checkRange(name: string, value: number | undefined, least: number, most: number): void {
  if (value !== undefined && !(typeof value === "number" && value >= least && value <= most)) {
    throw new RangeError(`${name} has to be from ${least} to ${most}, not ${value}`);
  }
}

/** Return a number, or undefined. Throws RangeError for NaN and the infinities. */
export function finite(name: string, value: number | undefined): number | undefined {
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new RangeError(`${name} has to be a number that JSON has, not ${value}`);
  }
  return value;
}
