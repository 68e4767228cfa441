// Each station's formula as a tree of MathML, once in letters and once with this run's numbers.
import { spreadOf } from "./lab";
import { isHead, type Payloads } from "./payloads";
import { figure } from "./numbers";

/** An element of MathML: its name and what is in it. */
export type Markup = string | [name: string, ...Markup[]];

const letter = (text: string): Markup => ["mi", text];
const words = (text: string): Markup => ["mtext", text.replaceAll(" ", "\u00a0")]; // MathML drops blanks at ends
const sign = (text: string): Markup => ["mo", text];
const number = (value: number | null | undefined, digits = 3): Markup => ["mn", figure(value, digits)];
const row = (...parts: Markup[]): Markup => ["mrow", ...parts];
const over = (top: Markup, bottom: Markup): Markup => ["mfrac", top, bottom];
const root = (inner: Markup): Markup => ["msqrt", inner];
const below = (base: Markup, index: Markup): Markup => ["msub", base, index];
const above = (base: Markup, power: Markup): Markup => ["msup", base, power];
const times = sign("\u00d7");
const equals = sign("=");
const about = sign("\u2248");
const plus = sign("+");
const sum = (index: Markup): Markup => ["munder", sign("\u2211"), index];
const norm = (inner: Markup): Markup => row(sign("\u2016"), inner, sign("\u2016"));
const braced = (...inner: Markup[]): Markup => row(sign("("), ...inner, sign(")"));

type Maker<Name extends keyof Payloads> = (values: Payloads[Name]) => Markup[];

const MAKERS: { [Name in keyof Payloads]?: Maker<Name> } = {
  characters: (values) => {
    const point = values.code_points.at(0);
    return [row(words(`"${values.text[0] ?? ""}"`), sign("\u2192"), number(point), equals,
      words(`U+${point.toString(16).toUpperCase().padStart(4, "0")}`))];
  },
  tokens: (values) => {
    const sizes = values.num_bytes.slice(0, values.num_prompt);
    const total = sizes.reduce((all, each) => all + each, 0);
    return [row(over(words("bytes"), words("tokens")), equals, over(number(total), number(sizes.length)),
      equals, number(total / sizes.length))];
  },
  merges: () => [row(words("next merge"), equals, ["munder", words("arg min"), braced(letter("a"), sign(","), letter("b"))],
    words(" rank"), braced(letter("a"), letter("b")))],
  embeddings: (values) => [
    row(letter("x"), equals, below(letter("E"), words("id")), equals,
      below(letter("E"), number(values.token_ids[0])), sign("="),
      sign("["), number(values.first.at(0)), sign(","), number(values.first.at(1)), sign(","), words("\u2026"), sign("]")),
    row(words("cos"), braced(letter("a"), sign(","), letter("b")), equals,
      over(row(letter("a"), sign("\u00b7"), letter("b")), row(norm(letter("a")), norm(letter("b")))), equals,
      number(values.neighbours[0]?.cosine)),
  ],
  positions: (values) =>
    values.kind !== "rotary"
      ? []
      : [
          row(below(letter("\u03b8"), letter("i")), equals, letter("p"), times, below(letter("\u03c9"), letter("i")), sign(";"),
            below(letter("\u03b8"), number(1)), equals, number(values.position), times, number(values.inverse.at(1)),
            equals, number(values.position * values.inverse.at(1)), words(" rad")),
          row(below(letter("R"), letter("m")), letter("q"), sign("\u00b7"), below(letter("R"), letter("n")), letter("k"),
            equals, letter("f"), braced(letter("m"), sign("\u2212"), letter("n")), equals,
            letter("f"), braced(number(values.position - values.key_position)), equals, number(values.score)),
        ],
  attention: (values) => {
    if (!isHead(values)) {
      return [row(letter("H"), equals, sign("\u2212"), sum(letter("k")), below(letter("w"), letter("k")),
        below(words("log"), number(2)), below(letter("w"), letter("k")))];
    }
    const [top, rest] = [values.top_weights.list(), values.hidden];
    const shown = top.slice(0, 3);
    const others = top.slice(3).reduce((all, each) => all + each, rest);
    return [row(sum(letter("k")), below(letter("w"), letter("k")), equals,
      ...shown.flatMap((each, index) => (index ? [plus, number(each)] : [number(each)])),
      ...(others > 0 ? [plus, number(others)] : []), about, number(shown.reduce((all, each) => all + each, others)))];
  },
  arithmetic: (values) => {
    const weights = values.weights.list();
    const best = weights.indexOf(Math.max(...weights));
    const size = values.query.length;
    return [
      row(words("softmax"), braced(letter("q"), sign("\u00b7"), letter("k"), sign("/"), root(letter("d"))), letter("V")),
      row(below(letter("s"), number(best)), equals, over(number(values.products.at(best)), root(number(size))), equals,
        number(values.scaled.at(best)), sign(","), below(letter("w"), number(best)), equals,
        over(above(letter("e"), number(values.scaled.at(best))),
          row(sum(letter("k")), above(letter("e"), below(letter("s"), letter("k"))))), equals, number(weights[best])),
    ];
  },
  feedforward: (values) => {
    const gated = values.kind !== "plain";
    const formula = gated
      ? row(letter("h"), equals, letter(values.activation), braced(letter("g")), times, letter("u"))
      : row(letter("h"), equals, letter(values.activation), braced(letter("u")));
    const filled = gated
      ? row(below(letter("h"), number(values.units.at(0))), equals, letter(values.activation), braced(number(values.gate.at(0))),
          times, number(values.up.at(0)), about, number(values.product.at(0)))
      : row(below(letter("h"), number(values.units.at(0))), about, number(values.product.at(0)));
    return [formula, filled];
  },
  experts: (values) =>
    values.num_experts
      ? [row(letter("y"), equals, sum(row(letter("e"), sign("\u2208"), words(`top ${values.num_chosen}`))),
          below(letter("g"), letter("e")), times, below(words("FFN"), letter("e")), braced(letter("x")))]
      : [],
  weights: (values) => [
    row(words("bits a number"), equals, over(row(number(8), times, number(values.num_bytes)), number(values.num_numbers)),
      equals, number(values.bits_per_number)),
  ],
  residual: (values) => {
    const last = values.stream.length - 1;
    return [
      row(below(letter("x"), row(letter("l"), plus, number(1))), equals, below(letter("x"), letter("l")), plus,
        words("attention"), braced(words("norm "), below(letter("x"), letter("l"))), plus, words("FFN"),
        braced(words("norm "), letter("x\u2032"))),
      row(norm(below(letter("x"), number(0))), equals, number(values.embedding), sign("\u2192"),
        norm(below(letter("x"), number(last + 1))), equals, number(values.stream.at(last))),
    ];
  },
  drift: (values) => {
    const last = values.own.length - 1;
    return [row(words("cos"), braced(below(letter("x"), number(last)), sign(","), below(letter("x"), number(0))), equals,
      number(values.own.at(last)))];
  },
  lens: (values) => [
    row(words("softmax"), braced(letter("W"), words(" norm "), below(letter("x"), letter("l")))),
    row(number(2), times, letter("D"), times, letter("V"), times, number(values.layers.length * values.positions.length),
      words(" cells"), equals, number(values.flops / 1e9), words(" GFLOP")),
  ],
  logits: (values) => {
    const { most, mass } = spreadOf(values.logits.data);
    const top = row(above(letter("e"), letter("z")), sign("/"), sum(letter("v")), above(letter("e"), below(letter("z"), letter("v"))));
    return [row(letter("p"), equals, top, equals, over(above(letter("e"), number(most)), number(Math.exp(most) * mass)), equals, number(1 / mass, 4))];
  },
  probabilities: (values) => [
    row(letter("p"), equals, over(above(letter("e"), letter("z")), row(sum(letter("v")), above(letter("e"), below(letter("z"), letter("v"))))),
      equals, above(letter("e"), number(values.chosen.logprob, 4)), equals, number(values.chosen.probability, 4)),
  ],
  sampling: (values) => {
    const draw = values.draw_effect;
    const temperature = values.settings.temperature ?? 1;
    const formula = row(letter("p"), sign("\u221d"), above(letter("e"), row(letter("z"), sign("/"), number(temperature))));
    if (!draw) return [row(words("token"), equals, words("arg max "), letter("z"))];
    return [formula, row(number(draw.low), sign("\u2264"), sign("\u230a"), number(draw.u), times,
      number(draw.total), sign("/"), above(number(2), number(32)), sign("\u230b"), equals, number(draw.target), sign("<"), number(draw.high))];
  },
  grammar: (values) =>
    values.row ? [row(letter("p\u2032"), equals, over(letter("p"), words("allowed mass")), equals, over(letter("p"), number(values.row.allowed_mass)))] : [],
  speculation: (values) => {
    const [tried, right] = [values.tried.list(), values.right.list()];
    const shares = right.map((each, place) => (tried[place] ? each / tried[place] : 0)).slice(0, 3);
    if (!values.num_guessed) return [];
    const terms = shares.flatMap((_, place) => [sign("+"), ...shares.slice(0, place + 1).map((share) => number(share, 2))]);
    const rest = tried.length > 3 ? [sign("+"), sign("\u2026")] : [];
    return [row(words("tokens a step"), equals, number(1), ...terms, ...rest, equals, number(values.expected, 3))];
  },
  detokenization: (values) => [row(over(words("bytes"), words("tokens")), equals,
    over(number(values.num_bytes), number(values.num_tokens)), equals, number(values.num_bytes / values.num_tokens))],
  pages: (values) => {
    const group = values.groups[0];
    if (!group) return [];
    const each = group.token_bytes / group.layers.length / Math.max(1, group.fields.length);
    return [
      row(number(group.fields.length), times, number(group.layers.length), words(" layers"), times, number(each), words(" B"), equals,
        number(group.token_bytes), words(" B a token")),
      row(number(values.num_tokens), times, number(values.token_bytes), words(" B"), equals, number(values.kept_bytes), words(" B")),
    ];
  },
  timeline: (values) => [
    row(words("tokens a second"), equals, over(number(values.gaps.length), row(number(values.total), words(" s"), sign("\u2212"), number(values.first_token), words(" s"))),
      about, number(values.gaps.length / Math.max(1e-9, values.total - values.first_token))),
  ],
  cost: (values) => {
    const decode = values.modes.find((each) => each.name === "decode");
    return decode
      ? [row(over(words("operations"), words("bytes")), equals, over(number(decode.flops), number(decode.num_bytes)), equals, number(decode.intensity))]
      : [];
  },
};

/** A view's formulas with the numbers of its values; none where there is nothing to compute. */
export function formulasOf<Name extends keyof Payloads>(view: Name, values: Payloads[Name]): Markup[] {
  return MAKERS[view]?.(values) ?? [];
}
