// Vercel's AI SDK: a loop of steps over two tools, whole and streamed.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "cutaway", baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const tools = {
  temperature: tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `${city}: 21` }),
  rounded: tool({ inputSchema: z.object({ value: z.number() }), execute: async ({ value }) => String(Math.round(value)) }),
};
const asked = { model: provider("planned"), tools, stopWhen: stepCountIs(5), prompt: "How warm is Oslo?" };
const whole = await generateText(asked);
if (whole.steps.length !== 3 || !whole.text.includes('"degrees": 21')) throw new Error(whole.text);
const stream = streamText(asked);
let text = "";
for await (const piece of stream.textStream) text += piece;
if (!text.includes('"degrees": 21')) throw new Error(text);
console.log("done");
