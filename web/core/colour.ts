// Colours of numbers: viridis for sizes, blue to orange for signs, even hues for tokens.

export type Rgb = readonly [number, number, number];

// Eleven points of viridis (Smith and van der Walt, 2015), evenly apart.
const VIRIDIS: readonly Rgb[] = [
  [68, 1, 84],
  [72, 36, 117],
  [65, 68, 135],
  [53, 95, 141],
  [42, 120, 142],
  [33, 145, 140],
  [34, 168, 132],
  [68, 191, 112],
  [122, 209, 81],
  [189, 223, 38],
  [253, 231, 37],
];
const BELOW: Rgb = [37, 99, 235];
const ABOVE: Rgb = [217, 119, 6];

function mixed(from: Rgb, to: Rgb, part: number): Rgb {
  const mix = (axis: 0 | 1 | 2): number => Math.round(from[axis] + (to[axis] - from[axis]) * part);
  return [mix(0), mix(1), mix(2)];
}

const within = (value: number): number => Math.max(0, Math.min(1, value));

/** The colour of a size, 0 to 1. */
export function viridis(value: number): Rgb {
  const at = within(value) * (VIRIDIS.length - 1);
  const index = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return mixed(VIRIDIS[index]!, VIRIDIS[index + 1]!, at - index);
}

/** The colour of a number with a sign, -1 to 1, and how much it covers of the ground, to 255. */
export function diverging(value: number): readonly [...Rgb, number] {
  return [...(value < 0 ? BELOW : ABOVE), Math.round(255 * within(Math.abs(value)))];
}

export const css = ([red, green, blue]: Rgb): string => `rgb(${red} ${green} ${blue})`;

/** Black or white: what can be read on a colour. */
export function inkOn([red, green, blue]: Rgb): string {
  return luminance(red, green, blue) > 0.179 ? "#000" : "#fff";
}

/** Relative luminance as WCAG 2 defines it. */
export function luminance(red: number, green: number, blue: number): number {
  const linear = (part: number): number => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

/** How many colours tokens take turns in; the style sheet has them as --token-0 on. */
export const TOKEN_COLOURS = 6;
