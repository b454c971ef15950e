/** Times and numbers as people read them. */
import { visible } from "./dom";
import type { Host } from "./types";

export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(whole / unit)) as [number, number, number];
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole || "less than 1"} s`;
}

/** Only the time of day for one of today; empty for what is no time. */
export function moment(iso: string | null | undefined, { context: { locale, timeZone } }: Host): string {
  const at = new Date(iso ?? NaN);
  if (isNaN(+at)) return "";
  const isToday = at.toDateString() === new Date().toDateString();
  const style = !isToday ? ({ dateStyle: "medium", timeStyle: "short" } as const) : ({ timeStyle: "medium" } as const);
  try {
    return at.toLocaleString(locale, { ...style, timeZone });
  } catch {
    return at.toLocaleString(undefined, style); // The host's locale or time zone is none
  }
}

/** What there is, on one line. */
export const dotted = (...parts: unknown[]) => visible(parts.filter(Boolean).join(" · "));

export const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** Addresses that may be opened: those of the web, encrypted, or of this machine. */
export function webAddress(url: string | null | undefined): string | null {
  const parsed = url && URL.canParse(url) ? new URL(url) : null;
  const isHere = parsed?.protocol === "http:" && ["localhost", "127.0.0.1", "[::1]"].includes(parsed.hostname);
  return parsed && (parsed.protocol === "https:" || isHere) && !parsed.username ? parsed.href : null;
}
