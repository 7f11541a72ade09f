// The texts in Japanese, by their English text.
import charts from "./ja/charts";
import pages from "./ja/pages";
import scheduling from "./ja/scheduling";
import shell from "./ja/shell";
import usage from "./ja/usage";

export default { ...shell, ...charts, ...pages, ...scheduling, ...usage };
