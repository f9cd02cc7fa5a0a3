// Names of measures, and the small language of the filter: "entropy < 1 and obj > 0.5". Nothing is evaluated as script.

// The measure that a name means: its whole name, one of its short names, the end of its name, its variable.
const lookups = new Map();
function lookup(name) {
  const asked = name.toLowerCase();
  if (!lookups.has(asked)) {
    const tests = [
      (m) => m.name.toLowerCase() === asked,
      (m) => m.asked && m.asked.some((own) => own.toLowerCase() === asked),
      (m) => m.name.toLowerCase().endsWith(`.${asked}`),
      (m) => m.variable.toLowerCase() === asked,
      (m) => m.item && m.item.some((own) => own.toLowerCase() === asked),
    ];
    let found = null;
    for (const test of tests) if ((found = data.measures.find(test))) break;
    lookups.set(asked, found || null);
  }
  return lookups.get(asked);
}

const TOKEN = /\s*(?:(\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)|("[^"]*"|'[^']*')|([\p{L}_][\p{L}\p{N}_.:]*)|(<=|>=|!=|==|[<>=()+\-*/≤≥]))/uy;

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const at = TOKEN.lastIndex, match = TOKEN.exec(text);
    if (!match) throw new Error(`“${text.slice(at).trim().slice(0, 20)}” cannot be read`);
    if (match[1]) found.push({ number: Number(match[1]) });
    else if (match[2]) found.push({ name: match[2].slice(1, -1), quoted: true });
    else if (match[3]) found.push({ name: match[3] });
    else found.push({ mark: { "==": "=", "≤": "<=", "≥": ">=" }[match[4]] || match[4] });
    if (found.length > 400) throw new Error("it is too long");
  }
  return found;
}

// `word` is the older name of `label`.
const WORDS = { label: (i) => data.heads[i].word, word: (i) => data.heads[i].word, kind: (i) => data.heads[i].kind, name: (i) => data.heads[i].name };
const PLACES = { layer: (i) => Math.floor(i / HEADS), head: (i) => i % HEADS };
const COMPARE = {
  "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b && !Number.isNaN(a) && !Number.isNaN(b),
};

// A filter as { test(head), used: measures }; throws with a sentence on what cannot be read.
function parseFilter(text) {
  const list = tokens(text), used = new Set();
  let at = 0, depth = 0;
  const peek = (...marks) => at < list.length && marks.includes(list[at].mark);
  const word = (name) => at < list.length && !list[at].quoted && (list[at].name || "").toLowerCase() === name;
  const said = () => (at < list.length ? `“${list[at].mark || list[at].name || list[at].number}”` : "the end");

  function any() {
    const parts = [all()];
    while (word("or")) { at++; parts.push(all()); }
    return parts.length === 1 ? parts[0] : (i) => parts.some((test) => test(i));
  }
  function all() {
    const parts = [one()];
    while (word("and")) { at++; parts.push(one()); }
    return parts.length === 1 ? parts[0] : (i) => parts.every((test) => test(i));
  }
  function one() {
    if (++depth > 50) throw new Error("it is nested too deep");
    try {
      if (word("not")) { at++; const inner = one(); return (i) => !inner(i); }
      if (peek("(")) {
        const back = at;
        at++;
        try {
          const inner = any();
          if (peek(")")) { at++; if (!peek("<", "<=", ">", ">=", "=", "!=", "+", "-", "*", "/")) return inner; }
        } catch (error) { if (back === 0 && !list.some((t) => t.mark === ")")) throw error; }
        at = back;
      }
      return comparison();
    } finally { depth--; }
  }
  function comparison() {
    const own = at < list.length && !list[at].quoted && WORDS[(list[at].name || "").toLowerCase()];
    if (own && list[at + 1] && ["=", "!="].includes(list[at + 1].mark)) {
      const equal = list[at + 1].mark === "=";
      at += 2;
      if (at >= list.length || list[at].name === undefined) throw new Error(`a label is missing before ${said()}`);
      const wanted = list[at++].name.toLowerCase();
      return (i) => (own(i).toLowerCase() === wanted) === equal;
    }
    const left = sum();
    if (!peek(...Object.keys(COMPARE))) return (i) => Boolean(left(i));
    let before = left, tests = [];
    while (peek(...Object.keys(COMPARE))) {  // 0.2 < entropy < 1
      const compare = COMPARE[list[at++].mark], a = before, b = sum();
      tests.push((i) => compare(a(i), b(i)));
      before = b;
    }
    return (i) => tests.every((test) => test(i));
  }
  function sum() {
    let value = product();
    while (peek("+", "-")) {
      const mark = list[at++].mark, a = value, b = product();
      value = mark === "+" ? (i) => a(i) + b(i) : (i) => a(i) - b(i);
    }
    return value;
  }
  function product() {
    let value = factor();
    while (peek("*", "/")) {
      const mark = list[at++].mark, a = value, b = factor();
      value = mark === "*" ? (i) => a(i) * b(i) : (i) => a(i) / b(i);
    }
    return value;
  }
  function factor() {
    if (++depth > 50) throw new Error("it is nested too deep");
    try {
      if (peek("-")) { at++; const inner = factor(); return (i) => -inner(i); }
      if (peek("(")) {
        at++;
        const inner = sum();
        if (!peek(")")) throw new Error(`a bracket is not closed before ${said()}`);
        at++;
        return inner;
      }
      const token = list[at++];
      if (token && token.number !== undefined) return () => token.number;
      if (!token || token.name === undefined) { at--; throw new Error(`a measure or a number is missing before ${said()}`); }
      const place = !token.quoted && PLACES[token.name.toLowerCase()];
      if (place) return place;
      const measure = lookup(token.name);
      if (!measure) throw new Error(`no measure is called “${token.name.slice(0, 40)}”`);
      used.add(measure);
      const values = valuesOf(measure);
      return (i) => values[i];
    } finally { depth--; }
  }
  const test = any();
  if (at < list.length) throw new Error(`${said()} is not expected here`);
  return { test, used: [...used] };
}
