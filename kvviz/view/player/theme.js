// Light or dark, as the page around the player is, also when that changes. On paper: light.

/**
 * JupyterLab, VS Code and Colab each say it in their own way; elsewhere the system's wish counts.
 * @param {string} wish  "light" | "dark" | "auto"
 */
export function isDark(wish) {
  if (matchMedia("print").matches) return false;
  if (wish === "light" || wish === "dark") return wish === "dark";
  const { body, documentElement: html } = document;
  if (body.dataset.jpThemeLight !== undefined) return body.dataset.jpThemeLight === "false";
  const code = body.dataset.vscodeThemeKind || [...body.classList].find((name) => name.startsWith("vscode-"));
  if (code) return !code.includes("light");
  const named = html.getAttribute("theme") || html.dataset.theme;
  if (named === "light" || named === "dark") return named === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * Call back on each change. The player is held weakly: an output that was cleared must not live on through this.
 * @param {(atOnce: boolean) => void} changed  kept alive by the player; atOnce: the page is printed as soon as it returns
 * @returns {() => void} stop watching
 */
export function watchTheme(changed) {
  const held = new WeakRef(changed), scheme = matchMedia("(prefers-color-scheme: dark)"), print = matchMedia("print");
  const tell = (atOnce = false) => (held.deref() || stop)(atOnce);
  const later = () => tell(), now = () => tell(true);
  const observer = new MutationObserver(later);
  const attributeFilter = ["class", "theme", "data-theme", "data-jp-theme-light", "data-vscode-theme-kind"];
  for (const node of [document.body, document.documentElement]) observer.observe(node, { attributes: true, attributeFilter });
  scheme.addEventListener("change", later);
  print.addEventListener("change", now);
  const stop = () => {
    observer.disconnect();
    scheme.removeEventListener("change", later);
    print.removeEventListener("change", now);
  };
  return stop;
}
