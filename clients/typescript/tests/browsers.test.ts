import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { builtinModules } from "node:module";
import { test } from "node:test";

/** Every module that one imports, by following what is written in the built files. */
async function importsOf(entry: URL, found = new Set<string>()): Promise<Set<string>> {
  const source = await readFile(entry, "utf8");
  for (const [, name = ""] of source.matchAll(/\bfrom "([^"]+)"|import\("([^"]+)"\)/g)) {
    const next = name.startsWith(".") ? new URL(name, entry).href : name;
    if (found.has(next)) continue;
    found.add(next);
    if (name.startsWith(".")) await importsOf(new URL(next), found);
  }
  return found;
}

const isNodes = (name: string) => name.startsWith("node:") || builtinModules.includes(name);

test("the producer's entry needs nothing of Node", async () => {
  const found = await importsOf(new URL("../src/producer.js", import.meta.url));
  assert.ok([...found].some((name) => name.endsWith("client.js")));
  assert.deepEqual([...found].filter(isNodes), []);
  for (const name of found) {
    assert.doesNotMatch(
      await readFile(new URL(name), "utf8"),
      /\b(process\.|Buffer\.|setImmediate\(|require\()/,
    );
  }
});

test("the whole package needs Node, so this test looks at the right thing", async () => {
  const found = await importsOf(new URL("../src/index.js", import.meta.url));
  assert.ok([...found].some(isNodes));
});
