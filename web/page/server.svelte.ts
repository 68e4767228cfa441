// Which model the server has, and whether it takes requests.
import { faultOf } from "../core/chat";

const WAIT_MS = 2000;

/** What the page knows of its server. */
export class Server {
  model = $state("");
  isReady = $state(false);
  words = $state("Asking the server …");

  /** Ask until the server is ready. A refusal for want of a key is final. */
  async watch(): Promise<void> {
    while (!(await this.#look())) await new Promise((resume) => setTimeout(resume, WAIT_MS));
  }

  async #look(): Promise<boolean> {
    try {
      const models = await fetch("/v1/models");
      if (models.status === 401) {
        this.words = "This server asks for a key. Open the page by the link that it was started with.";
        return true;
      }
      if (!models.ok) throw new Error(await faultOf(models));
      const list = (await models.json()) as { data: { id: string }[] };
      this.model = list.data[0]?.id ?? "";
      const ready = await fetch("/ready");
      this.isReady = ready.ok;
      this.words = ready.ok ? "ready" : await faultOf(ready);
    } catch (error) {
      this.words = error instanceof TypeError ? "The server does not answer." : String(error);
    }
    return this.isReady;
  }
}
