// All conversations of this browser: which there are, which is open, and how they are kept.
import { NOTHING_SET, type Settings } from "../../core/sampling";
import { newId, readChats, written, type KeptChat } from "../../core/transfer";
import { Conversation } from "./conversation.svelte";
import { allChats, chatOf, forgetChat, hear, keepChat } from "./store";

/** Conversations, the one that changed last first. */
export class Library {
  chats: KeptChat[] = $state.raw([]);
  open: Conversation = $state(new Conversation((chat) => this.#keep(chat)));
  fault = $state("");
  #removed = new Set<string>(); // an answer that was stopped by it keeps its conversation no more

  /** Read what is there, and open the conversation that is named. */
  async start(id: string | null): Promise<void> {
    hear((other) => void this.#heard(other));
    try {
      this.chats = await allChats();
    } catch (error) {
      this.fault = `This browser keeps no conversations: ${error instanceof Error ? error.message : error}`;
    }
    if (id && id !== this.open.id) this.show(id);
  }

  /** Open a conversation; one that is not there leaves the open one. */
  show(id: string): void {
    const kept = this.chats.find((chat) => chat.id === id);
    if (!kept) return;
    this.open.stop();
    this.open = Conversation.from(kept, (chat) => this.#keep(chat));
    void this.open.readTokens();
  }

  /** Begin a conversation with the settings of the open one. */
  begin(): void {
    this.open.stop();
    const settings: Settings = this.open.turns.length ? $state.snapshot(this.open.settings) : NOTHING_SET;
    this.open = new Conversation((chat) => this.#keep(chat), settings);
  }

  rename(id: string, title: string): void {
    const kept = this.chats.find((chat) => chat.id === id);
    if (!kept || !title.trim()) return;
    if (id === this.open.id) this.open.title = title.trim();
    this.#keep({ ...kept, title: title.trim() });
  }

  remove(id: string): void {
    const kept = this.chats.find((chat) => chat.id === id);
    if (!kept) return;
    this.#removed.add(id);
    if (id === this.open.id) {
      this.open.stop();
      this.open = new Conversation((chat) => this.#keep(chat));
    }
    this.chats = this.chats.filter((chat) => chat.id !== id);
    this.#try(forgetChat(kept));
  }

  /** The conversations in which every word of a search stands, in any case. */
  found(search: string): KeptChat[] {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    return this.chats.filter((chat) => {
      const text = [chat.title, ...chat.turns.map((turn) => turn.text)].join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  /** Take in the conversations of a file; those with a name that is taken get a new one. */
  take(text: string): void {
    this.fault = "";
    try {
      const taken = new Set(this.chats.map((chat) => chat.id));
      for (const chat of readChats(text)) this.#keep(taken.has(chat.id) ? { ...chat, id: newId() } : chat);
    } catch (error) {
      this.fault = error instanceof Error ? error.message : String(error);
    }
  }

  /** All conversations as a file. */
  export(chats: readonly KeptChat[] = this.chats): Blob {
    return new Blob([written(chats)], { type: "application/json" });
  }

  #keep(chat: KeptChat): void {
    if (!chat.turns.length || this.#removed.has(chat.id)) return;
    const others = this.chats.filter((other) => other.id !== chat.id);
    this.chats = [chat, ...others].sort((one, other) => other.changed - one.changed);
    const kept = keepChat(chat);
    this.#try(kept.then((all) => (all.turns.length > chat.turns.length ? this.#heard(chat.id) : undefined)));
  }

  /** Another tab has changed a conversation, or removed it. */
  async #heard(id: string): Promise<void> {
    const kept = this.#removed.has(id) ? null : await chatOf(id).catch(() => null);
    const others = this.chats.filter((other) => other.id !== id);
    this.chats = kept ? [kept, ...others].sort((one, other) => other.changed - one.changed) : others;
    if (kept && id === this.open.id) this.open.take(kept);
  }

  #try(work: Promise<unknown>): void {
    work.catch((error: unknown) => {
      this.fault = `This browser could not keep it: ${error instanceof Error ? error.message : error}`;
    });
  }
}
