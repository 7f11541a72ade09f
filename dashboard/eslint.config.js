import hooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["node_modules", "src/api/schema.ts"] },
  ...tseslint.configs.strict,
  {
    files: ["src/**/*.{ts,tsx}", "test/**/*.ts"],
    plugins: { "react-hooks": hooks },
    rules: {
      ...hooks.configs.recommended.rules,
      // Effects here run on a few of the values they read, on purpose: a redraw on every render costs frames.
      "react-hooks/exhaustive-deps": "off",
      // Indexing is checked by the compiler (noUncheckedIndexedAccess); an assertion states why it is safe.
      "@typescript-eslint/no-non-null-assertion": "off",
    },
  },
);
