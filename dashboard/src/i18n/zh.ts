// The texts in Chinese (simplified), by their English text.
import charts from "./zh/charts";
import pages from "./zh/pages";
import scheduling from "./zh/scheduling";
import shell from "./zh/shell";
import usage from "./zh/usage";

export default { ...shell, ...charts, ...pages, ...scheduling, ...usage };
