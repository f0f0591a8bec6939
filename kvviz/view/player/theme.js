// Light or dark, as the page around the player is, also when that changes.

/**
 * JupyterLab, VS Code and Colab each say it in their own way; elsewhere the system's wish counts.
 * @param {string} wish  "light" | "dark" | "auto"
 */
export function isDark(wish) {
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
 * @param {() => void} changed  kept alive by the player @returns {() => void} stop watching
 */
export function watchTheme(changed) {
  const held = new WeakRef(changed), media = matchMedia("(prefers-color-scheme: dark)");
  const tell = () => (held.deref() || stop)();
  const observer = new MutationObserver(tell);
  const attributeFilter = ["class", "theme", "data-theme", "data-jp-theme-light", "data-vscode-theme-kind"];
  for (const node of [document.body, document.documentElement]) observer.observe(node, { attributes: true, attributeFilter });
  media.addEventListener("change", tell);
  const stop = () => {
    observer.disconnect();
    media.removeEventListener("change", tell);
  };
  return stop;
}
