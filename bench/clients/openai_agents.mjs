// OpenAI's Agents SDK for Node: two tools and an output type.
import { Agent, OpenAIResponsesModel, Runner, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

setTracingDisabled(true);
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const temperature = tool({
  name: "temperature",
  description: "The temperature of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `${city}: 21`,
});
const rounded = tool({
  name: "rounded",
  description: "A number without its fraction.",
  parameters: z.object({ value: z.number() }),
  execute: async ({ value }) => String(Math.round(value)),
});
const agent = new Agent({
  name: "weather",
  model: new OpenAIResponsesModel(client, "planned"),
  tools: [temperature, rounded],
  outputType: z.object({ city: z.string(), degrees: z.number() }),
});
const done = await new Runner().run(agent, "How warm is Oslo?");
if (done.finalOutput.degrees !== 21) throw new Error(JSON.stringify(done.finalOutput));
console.log("done");
