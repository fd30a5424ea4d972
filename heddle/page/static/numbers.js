// Numbers, and nothing of the browser: what `node --test` can check.

/** @typedef {{shape: number[], kind: string, data: string}} Packed */

/**
 * @param {Packed} packed
 * @returns {Float32Array | Uint8Array}
 */
export function unpack(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  return packed.kind === "f32" ? new Float32Array(bytes.buffer) : bytes;
}

/**
 * Truth values, eight in a byte, as one byte each.
 * @param {Packed} packed
 */
export function unpackBits(packed) {
  const [rows, columns] = packed.shape;
  const bytes = unpack(packed), wide = Math.ceil(columns / 8), found = new Uint8Array(rows * columns);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      found[row * columns + column] = (bytes[row * wide + (column >> 3)] >> (7 - (column & 7))) & 1;
  return found;
}

/**
 * The softmax of each row of scores over what is allowed, beside the score of a sink if there is one; 0 where nothing is.
 * @param {ArrayLike<number>} scores
 * @param {ArrayLike<number> | null} allowed
 * @param {number} rows
 * @param {number} columns
 * @param {number | null} [sink]
 */
export function weights(scores, allowed, rows, columns, sink = null) {
  const found = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const start = row * columns;
    let most = -Infinity, sum = 0;
    for (let place = start; place < start + columns; place++)
      if ((!allowed || allowed[place]) && scores[place] > most) most = scores[place];
    if (most === -Infinity) continue;
    if (sink !== null) {
      most = Math.max(most, sink);
      sum = Math.exp(sink - most);
    }
    for (let place = start; place < start + columns; place++)
      if (!allowed || allowed[place]) sum += found[place] = Math.exp(scores[place] - most);
    for (let place = start; place < start + columns; place++) found[place] /= sum;
  }
  return found;
}

/**
 * The softmax of scores divided by a temperature; at 0, all on the largest.
 * @param {ArrayLike<number>} logits
 * @param {number} temperature
 */
export function probabilities(logits, temperature) {
  const found = new Float64Array(logits.length);
  let most = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id] > logits[most]) most = id;
  if (temperature === 0) {
    found[most] = 1;
    return found;
  }
  let sum = 0;
  for (let id = 0; id < logits.length; id++) sum += found[id] = Math.exp((logits[id] - logits[most]) / temperature);
  for (let id = 0; id < logits.length; id++) found[id] /= sum;
  return found;
}

/**
 * Only the k most probable tokens, then of these the fewest whose probabilities sum to p; the rest become 0 and the others are
 * divided by their sum. As heddle samples: among equals the lowest ids stay; the token that reaches p stays.
 * @param {Float64Array} shares
 * @param {number} k 0: all
 * @param {number} p 1: all
 */
export function truncated(shares, k, p) {
  const order = [...shares.keys()].sort((one, two) => shares[two] - shares[one] || one - two);
  const found = Float64Array.from(shares);
  if (k > 0) for (const id of order.slice(k)) found[id] = 0;
  if (p < 1) {
    const whole = found.reduce((sum, each) => sum + each, 0);
    let before = 0;
    for (const id of order) {
      const share = found[id];
      if (before / whole >= p) found[id] = 0;
      before += share;
    }
  }
  const sum = found.reduce((total, each) => total + each, 0);
  return found.map((each) => each / sum);
}

/**
 * Random numbers in [0, 1) that a seed repeats (mulberry32).
 * @param {number} seed
 */
export function randoms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * @param {ArrayLike<number>} shares
 * @param {number} random in [0, 1)
 */
export function drawn(shares, random) {
  let left = random, last = 0;
  for (let id = 0; id < shares.length; id++) {
    if (shares[id] === 0) continue;
    last = id;
    left -= shares[id];
    if (left < 0) return id;
  }
  return last;
}

/**
 * @param {number | null | undefined} value
 * @param {number} digits significant ones
 */
export function said(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
}

/** @param {number} value a count with too many digits to read: four of them, and K, M, B or T */
export function short(value) {
  return value.toLocaleString("en-US", { notation: "compact", maximumSignificantDigits: 4 });
}

/** @param {number} share a probability, or a part of a whole, in [0, 1] */
export function percent(share) {
  return (share === 0 ? "0" : share < 0.001 ? "< 0.1" : (100 * share).toFixed(1)) + "\u00a0%";
}

/** @param {number | null | undefined} value a loss, a surprise or an entropy, with four significant digits */
export function nats(value) {
  const size = Math.abs(value ?? 0);
  return size >= 1e-4 && size < 1e4 ? Number(value).toPrecision(4) : said(value);
}

/**
 * A weight of attention, or a sum or mean of some. It is a factor of an average of values, not the probability of a token, so it is
 * a decimal number and no percentage.
 * @param {number} value
 */
export function weight(value) {
  return value === 0 ? "0" : value < 0.001 ? "< 0.001" : value.toFixed(3);
}

/**
 * A token so that it can be seen: blanks and line ends as signs.
 * @param {string} piece
 */
export function visible(piece) {
  if (piece === "") return "∅";
  return piece.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
      (sign) => "\\u" + sign.charCodeAt(0).toString(16).padStart(4, "0"));
}

/**
 * Rows as CSV (RFC 4180). Texts that a spreadsheet would run as formulas get an apostrophe.
 * @param {(string | number)[][]} rows
 */
export function csv(rows) {
  const cell = (/** @type {string | number} */ value) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/**
 * The cells of a matrix as the lectures print it: leading columns, …, the last one (L3-40).
 * @param {ArrayLike<number>} values
 * @param {number} rows
 * @param {number} columns
 * @param {number} leading
 */
export function leadingCells(values, rows, columns, leading = 3) {
  const found = [];
  for (let row = 0; row < rows; row++) {
    const cells = [];
    for (let column = 0; column < columns; column++) {
      if (columns > leading + 1 && column >= leading && column < columns - 1) {
        if (column === leading) cells.push("…");
        continue;
      }
      cells.push(values[row * columns + column].toFixed(2));
    }
    found.push(cells);
  }
  return found;
}

/**
 * Continuations that begin alike, as a tree.
 * @typedef {{id: number, piece: string, share: number, ends: {score: number, finish: string, place: number}[], next: Branch[]}} Branch
 * @param {{tokens: [number, string, number][], score: number, finish: string}[]} beams
 * @returns {Branch[]}
 */
export function tree(beams) {
  /** @type {Branch[]} */
  const roots = [];
  beams.forEach((beam, place) => {
    let level = roots;
    /** @type {Branch | undefined} */
    let node;
    for (const [id, piece, share] of beam.tokens) {
      node = level.find((each) => each.id === id);
      if (!node) level.push((node = { id, piece, share, ends: [], next: [] }));
      level = node.next;
    }
    node?.ends.push({ score: beam.score, finish: beam.finish, place });
  });
  return roots;
}

/**
 * Where a value lies on a map's scale: 0 at the ground, 1 at the high end. If some values are below zero, the ground is zero, and -1
 * is as far from it as 1: of the two ends, the one that is further away.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
export function onScale(value, low, high) {
  if (low < 0) return Math.max(-1, Math.min(1, value / Math.max(-low, high)));
  return Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
}

/**
 * The number of each cell that is furthest from zero when a map is drawn with fewer pixels than numbers; -Infinity where nothing is allowed.
 * @param {ArrayLike<number>} values
 * @param {ArrayLike<number> | null} allowed
 * @param {number} rows
 * @param {number} columns
 * @param {number} height
 * @param {number} width
 */
export function shrunk(values, allowed, rows, columns, height, width) {
  const found = new Float32Array(height * width).fill(-Infinity);
  for (let row = 0; row < rows; row++) {
    const start = Math.floor((row * height) / rows) * width;
    for (let column = 0; column < columns; column++) {
      const place = row * columns + column;
      if (allowed && !allowed[place]) continue;
      const cell = start + Math.floor((column * width) / columns);
      if (found[cell] === -Infinity || Math.abs(values[place]) > Math.abs(found[cell])) found[cell] = values[place];
    }
  }
  return found;
}

/**
 * Round steps for an axis.
 * @param {number} low
 * @param {number} high
 * @param {number} count about so many
 */
export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/**
 * Where a point of a plate is drawn: columns go right and down, rows left and down, 30 degrees each.
 * @param {number} column
 * @param {number} row
 * @returns {[number, number]} the way across and down from its back corner, in cells
 */
export function iso(column, row) {
  return [(column - row) * Math.cos(Math.PI / 6), (column + row) * Math.sin(Math.PI / 6)];
}

/**
 * The corners of a plate from the back one, clockwise, in its bounding box.
 * @param {number} columns
 * @param {number} rows
 * @returns {[number, number][]}
 */
export function corners(columns, rows) {
  const [left] = iso(0, rows);
  return [[0, 0], [columns, 0], [columns, rows], [0, rows]].map(([column, row]) => {
    const [across, down] = iso(column, row);
    return [across - left, down];
  });
}
