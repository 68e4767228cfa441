// How an answer is drawn, as a person sets it: fields, their ranges from the server, what is sent.

/** A number that a person may set. least, most: as the server says. */
export interface Field {
  name: string;
  label: string;
  meaning: string;
  isInteger: boolean;
  least: number;
  most: number;
  isLeastOpen: boolean;
  usual: number | null; // what holds where nothing is set
  slider: readonly [number, number, number] | null; // from, to, step: where people look
}

/** The form that an answer is held to. */
export type Form = "none" | "json" | "schema" | "regex" | "choice";

/** What is set for a conversation. */
export interface Settings {
  system: string;
  numbers: Record<string, number>;
  stop: string[];
  form: Form;
  formText: string;
  tools: string; // JSON, as a person wrote it
}

export const NOTHING_SET: Settings = {
  system: "",
  numbers: {},
  stop: [],
  form: "none",
  formText: "",
  tools: "",
};

interface Known {
  name: string;
  label: string;
  slider?: readonly [number, number, number];
  usual: number | null;
}

// Which fields are shown, in which order, and which part of the range a slider spans.
const KNOWN: readonly Known[] = [
  { name: "temperature", label: "Temperature", slider: [0, 2, 0.05], usual: 1 },
  { name: "top_p", label: "Top p", slider: [0, 1, 0.01], usual: 1 },
  { name: "top_k", label: "Top k", slider: [0, 200, 1], usual: 0 },
  { name: "min_p", label: "Min p", slider: [0, 1, 0.01], usual: 0 },
  { name: "repetition_penalty", label: "Repetition penalty", slider: [0.5, 2, 0.05], usual: 1 },
  { name: "presence_penalty", label: "Presence penalty", slider: [-2, 2, 0.1], usual: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", slider: [-2, 2, 0.1], usual: 0 },
  { name: "max_tokens", label: "Most tokens", usual: null },
  { name: "min_tokens", label: "Least tokens", usual: 0 },
  { name: "seed", label: "Seed", usual: null },
];

interface Schema {
  type?: string | string[];
  description?: string;
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
}

interface Body {
  requestBody?: { content?: { "application/json"?: { schema?: { properties?: Record<string, Schema> } } } };
}

const PATH = "/v1/chat/completions";

/** The fields that a server takes, with its ranges; usual: what its model's makers recommend. */
export function fieldsOf(openApi: unknown, usual: Readonly<Record<string, unknown>>): Field[] {
  const { paths } = (openApi ?? {}) as { paths?: Record<string, { post?: Body }> };
  const content = paths?.[PATH]?.post?.requestBody?.content;
  const properties = content?.["application/json"]?.schema?.properties ?? {};
  return KNOWN.flatMap((known) => {
    const schema = properties[known.name];
    if (!schema) return [];
    const own = usual[known.name];
    const isInteger = [schema.type].flat().includes("integer");
    const bound = isInteger ? Number.MAX_SAFE_INTEGER : Infinity; // beyond, JSON's integers are rounded here
    return {
      name: known.name,
      label: known.label,
      meaning: schema.description ?? "",
      isInteger,
      least: Math.max(schema.minimum ?? schema.exclusiveMinimum ?? -Infinity, -bound),
      most: Math.min(schema.maximum ?? Infinity, bound),
      isLeastOpen: schema.exclusiveMinimum !== undefined,
      usual: typeof own === "number" ? own : known.usual,
      slider: known.slider ?? null,
    };
  });
}

/** What is wrong with a number that was typed; empty when nothing is. */
export function faultOfNumber(field: Field, value: number): string {
  const above = field.isLeastOpen ? value > field.least : value >= field.least;
  const fits = above && value <= field.most && (!field.isInteger || Number.isInteger(value));
  if (fits) return "";
  const kind = field.isInteger ? "an integer" : "a number";
  const from = field.isLeastOpen ? `above ${field.least}` : `from ${field.least}`;
  return `${field.label} must be ${kind} ${from} to ${field.most}.`;
}

/** The fields of a request. Throws an Error where what was written is no JSON. */
export function requestFields(settings: Settings): Record<string, unknown> {
  const fields: Record<string, unknown> = { ...settings.numbers };
  const stops = settings.stop.filter(Boolean);
  if (stops.length) fields.stop = stops;
  const text = settings.formText.trim();
  if (settings.form === "json") fields.response_format = { type: "json_object" };
  else if (settings.form !== "none" && text) fields.structured_outputs = formOf(settings.form, text);
  if (settings.tools.trim()) fields.tools = toolsOf(settings.tools);
  return fields;
}

function formOf(form: Form, text: string): Record<string, unknown> {
  if (form === "schema") return { json: parsed(text, "The JSON schema") };
  if (form === "regex") return { regex: text };
  return { choice: text.split("\n").map((line) => line.trim()).filter(Boolean) };
}

/** Tools as the API takes them; bare functions are put into its frame. */
function toolsOf(text: string): unknown[] {
  const tools = parsed(text, "The list of tools");
  if (!Array.isArray(tools)) throw new Error("The list of tools must be a JSON array.");
  return tools.map((tool: unknown) => {
    const isBare = typeof tool === "object" && tool !== null && !("function" in tool);
    return isBare ? { type: "function", function: tool } : tool;
  });
}

function parsed(text: string, what: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error instanceof Error ? error.message : error}`);
  }
}
