// OpenAI's SDK for Node: tools by chat and by Responses, streamed and whole.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const value = { type: "object", properties: { value: { type: "number" } }, required: ["value"] };
const known = [["temperature", city], ["rounded", value]];

const chatTools = known.map(([name, parameters]) => ({ type: "function", function: { name, parameters } }));
const messages = [{ role: "user", content: "How warm is Oslo?" }];
for (;;) {
  const stream = client.chat.completions.stream({ model: "planned", messages, tools: chatTools });
  const message = (await stream.finalChatCompletion()).choices[0].message;
  messages.push(message);
  if (!message.tool_calls?.length) break;
  for (const call of message.tool_calls) messages.push({ role: "tool", tool_call_id: call.id, content: "21" });
}
if (messages.length !== 6 || !messages.at(-1).content.includes('"degrees": 21')) throw new Error(JSON.stringify(messages));

const tools = known.map(([name, parameters]) => ({ type: "function", name, parameters, strict: false }));
const input = [{ role: "user", content: "How warm is Oslo?" }];
let answer;
for (;;) {
  answer = await client.responses.create({ model: "planned", input, tools, reasoning: { effort: "low" } });
  input.push(...answer.output);
  const calls = answer.output.filter((item) => item.type === "function_call");
  if (!calls.length) break;
  for (const call of calls) input.push({ type: "function_call_output", call_id: call.call_id, output: "21" });
}
if (!answer.output_text.includes('"degrees": 21')) throw new Error(answer.output_text);
console.log("done");
