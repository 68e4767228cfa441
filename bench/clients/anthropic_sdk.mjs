// Anthropic's SDK for Node: tools by Messages, streamed.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none" });
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const value = { type: "object", properties: { value: { type: "number" } }, required: ["value"] };
const tools = [{ name: "temperature", input_schema: city }, { name: "rounded", input_schema: value }];
const messages = [{ role: "user", content: "How warm is Oslo?" }];
let message;
for (;;) {
  message = await client.messages.stream({ model: "planned", max_tokens: 32000, messages, tools }).finalMessage();
  messages.push({ role: "assistant", content: message.content });
  const calls = message.content.filter((block) => block.type === "tool_use");
  if (!calls.length) break;
  messages.push({
    role: "user",
    content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "21" })),
  });
}
if (messages.length !== 6 || !message.content[0].text.includes('"degrees": 21')) throw new Error(JSON.stringify(messages));
console.log("done");
