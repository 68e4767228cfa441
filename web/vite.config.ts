// Builds the page into the Python package. Nothing is inlined: its policy forbids inline code.
// With --mode viewer it builds the viewer of a trace as one file, which opens without any server.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** One document of a script and a style that its policy names by their hashes, with a place for a trace. */
function oneFile(): Plugin {
  const hashed = async (text: string): Promise<string> => {
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
    return `'sha256-${btoa(String.fromCharCode(...new Uint8Array(digest)))}'`;
  };
  return {
    name: "one-file",
    enforce: "post", // when the style is there
    async generateBundle(_, bundle) {
      const parts = Object.entries(bundle);
      const script = parts.map(([, part]) => (part.type === "chunk" ? part.code : "")).join("");
      const style = parts.map(([, part]) => (part.type === "asset" ? String(part.source) : "")).join("");
      if (/<\/?script/i.test(script) || /<\/style/i.test(style)) throw new Error("The viewer holds a tag that would end it.");
      for (const [name] of parts) delete bundle[name];
      const policy = [
        ...["default-src 'none'", `script-src ${await hashed(script)}`, `style-src ${await hashed(style)}`, "base-uri 'none'", "form-action 'none'"],
        ...["require-trusted-types-for 'script'", "trusted-types svelte-trusted-html"],
      ].join("; ");
      const source = [
        `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}">`,
        `<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">`,
        `<meta name="referrer" content="no-referrer"><title>Cutaway trace</title><style>${style}</style></head><body><div id="app"></div>`,
        `<noscript>This viewer needs JavaScript; it asks no server.</noscript><script type="text/plain" id="trace"></script>`,
        `<script>${script}</script></body></html>\n`,
      ].join("\n");
      this.emitFile({ type: "asset", fileName: "viewer.html", source });
    },
  };
}

// Small parts that rooms share go out in one file: a file each takes more bytes, and more ways.
const SMALL = /places.(Invite|Follow|FollowedRun|LessonForm|LessonRuns|RecordedRuns|Room|Training|TrainingCurves|Curve|Outcome|Chapter|End)\.svelte|core.training|scales|Meter|Bars|Steps|save\./;
// Rooms of a kind have words in common, and pack better as one.
const ROOMS = /places.(Learn|Lab|Levers|Engine|Open)\.svelte|core.(bpe|lab|live|repetition)\./;
const groups = [{ name: "small", test: SMALL }, { name: "rooms", test: ROOMS }];
const advancedChunks = { includeDependenciesRecursively: false, groups };

export default defineConfig(({ mode }) => ({
  assetsInclude: ["**/*.cutaway"], // trace files that tests open
  publicDir: mode === "viewer" ? false : "public",
  plugins: [
    svelte({
      onwarn(warning) {
        throw new Error(`${warning.code}: ${warning.message}`);
      },
    }),
    ...(mode === "viewer" ? [oneFile()] : []),
  ],
  build: {
    outDir: "../src/cutaway/_web",
    emptyOutDir: mode !== "viewer",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    ...(mode !== "viewer" && { rollupOptions: { output: { advancedChunks } } }),
    ...(mode === "viewer" && {
      cssCodeSplit: false,
      rollupOptions: { input: "page/viewer.ts", output: { format: "iife" as const } },
    }),
  },
}));
