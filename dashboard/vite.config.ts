import { defineConfig } from "vite";

// Relative addresses, so that the page works under any prefix that a proxy gives it. No file is
// put inline: the content policy allows none.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: "../src/gpufleet/server/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    host: "127.0.0.1",
    proxy: { "/api": "http://127.0.0.1:8080", "/docs": "http://127.0.0.1:8080" },
  },
});
