// Axes: where values lie and which of them get a label. No drawing here.

/** Round values that cover [low, high], about `count` of them. */
export function ticks(low, high, count) {
  const raw = (high - low) / count;
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    found.push(Math.abs(value) < step / 1e6 ? 0 : value);
  }
  return found;
}

/** A linear axis from values to pixels. */
export function linear(low, high, from, to) {
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  return { at, ticks: (count) => ticks(low, high, count) };
}

/** A logarithmic axis; all values are positive. */
export function logarithmic(low, high, from, to) {
  const inner = linear(Math.log10(low), Math.log10(high), from, to);
  const decades = () => {
    const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((last - first + 1) / 5));
    const found = [];
    for (let power = first; power <= last; power += every) found.push(10 ** power);
    return found;
  };
  return { at: (value) => inner.at(Math.log10(value)), ticks: decades };
}

/** An axis for these values: logarithmic where they are positive and span more than two decades. */
export function axis(values, from, to) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low > 0 && high / low > 100) return { ...logarithmic(low / 1.2, high * 1.2, from, to), log: true };
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  low -= room;
  high += room;
  return { ...linear(low, high, from, to), log: false };
}
