// Builds the page into the Python package. Nothing is inlined: its policy forbids inline code.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  plugins: [
    svelte({
      onwarn(warning) {
        throw new Error(`${warning.code}: ${warning.message}`);
      },
    }),
  ],
  build: {
    outDir: "../src/cutaway/_web",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
});
