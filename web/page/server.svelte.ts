// Which model the server has, what it takes, and whether it takes requests.
import { faultOf } from "../core/chat";
import { counted } from "../core/words";
import { fieldsOf, type Field } from "../core/sampling";

const WAIT_MS = 2000;

interface Card {
  id: string;
  max_model_len?: number;
  sampling?: Record<string, unknown>;
  about?: { architecture: string; num_parameters: number; dtype: string; device: string; licence: string };
}

/** What the page knows of its server. */
export class Server {
  model = $state("");
  maxLength = $state(0); // tokens of prompt and answer together; 0 while it is not known
  size = $state(""); // parameters
  told = $state(""); // what the model is, in words
  fields: Field[] = $state.raw([]);
  isReady = $state(false);
  words = $state("Asking the server …");

  #isWatched = false;

  /** Ask until the server is ready. A refusal for want of a key is final. */
  async watch(): Promise<void> {
    if (this.#isWatched) return;
    this.#isWatched = true;
    while (!(await this.#look())) await new Promise((resume) => setTimeout(resume, WAIT_MS));
    this.#isWatched = false;
  }

  async #look(): Promise<boolean> {
    try {
      const models = await fetch("/v1/models");
      if (models.status === 401) {
        this.isReady = false; // a server that was started anew knows this browser no more
        this.words = "This server asks for a key. Open the page by the link that it was started with.";
        return true;
      }
      if (!models.ok) throw new Error(await faultOf(models));
      const ready = await fetch("/ready");
      this.words = ready.ok ? "ready" : await faultOf(ready);
      const card = ((await models.json()) as { data: Card[] }).data[0];
      this.model = card?.id ?? "";
      this.maxLength = card?.max_model_len ?? 0;
      this.#tell(card);
      this.isReady = ready.ok;
      if (!ready.ok) return false;
      if (!this.fields.length) await this.#readFields(card?.sampling ?? {});
      // The list is asked before; a model that came between has told no length yet.
      return this.maxLength > 0;
    } catch (error) {
      this.isReady = false;
      this.words = error instanceof TypeError ? "The server does not answer." : String(error);
    }
    return false;
  }

  #tell({ about, max_model_len }: Card = { id: "" }): void {
    if (!about) return;
    this.size = `${counted(about.num_parameters)} parameters`;
    this.told =
      `${this.model}: ${about.architecture}, ${about.num_parameters.toLocaleString("en")} parameters, computing in ${about.dtype} on ` +
      `${about.device}, ${(max_model_len ?? 0).toLocaleString("en")} tokens of context, licence ${about.licence}. ` +
      "Another model: cutaway run NAME; cutaway models lists them.";
  }

  async #readFields(usual: Record<string, unknown>): Promise<void> {
    const told = await fetch("/openapi.json");
    if (told.ok) this.fields = fieldsOf(await told.json(), usual);
  }
}

/** Tokens of a text, as the server's tokenizer counts them; 0 where it does not tell. */
export async function countTokens(text: string): Promise<number> {
  const body = JSON.stringify({ prompt: text, add_special_tokens: false });
  const headers = { "content-type": "application/json" };
  const answer = await fetch("/tokenize", { method: "POST", headers, body }).catch(() => null);
  return answer?.ok ? ((await answer.json()) as { count: number }).count : 0;
}
