// Light and dark: the system's choice until somebody chooses.

import { el, tell } from "./base.js";

const KEY = "minitvm-theme";

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // pages from disk may have no storage
  }
}

export const isDark = () => document.documentElement.dataset.theme === "dark";

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // nothing is kept then
  }
  tell("theme");
}

export function themeButton() {
  document.documentElement.dataset.theme = kept() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  return el("button", {
    type: "button", class: "icon", id: "theme", title: "light or dark (t)", "aria-label": "light or dark", click: toggleTheme,
  }, "◐");
}

export const toggleTheme = () => setTheme(isDark() ? "light" : "dark");
