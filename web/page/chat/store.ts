// Conversations in this browser: nothing of them is kept on the server.
import { createStore, del, get, promisifyRequest, set, update, values, type UseStore } from "idb-keyval";

import type { Scored } from "../../core/chat";
import { merged, readChats, written, type KeptChat } from "../../core/transfer";
import type { Kept } from "../../core/tree";

/** What a page left that closed amid an answer: its turn, and its tokens from one on. */
interface Left {
  chat: string;
  turn: Kept;
  from: number;
  scored: Scored[];
}

// Two stores: all conversations are read at the start, tokens only of the one that is opened.
const chats = opened("cutaway-chats");
const tokens = opened("cutaway-tokens");
const tabs = hasStore() ? new BroadcastChannel("cutaway-chats") : null;
const LEFT = "left/";
const PART = 128; // tokens that are kept at once: some milliseconds

function opened(name: string): UseStore | null {
  return hasStore() ? createStore(name, "all") : null;
}

function hasStore(): boolean {
  try {
    return typeof indexedDB !== "undefined";
  } catch {
    return false; // a browser that keeps no cookies may refuse the very name
  }
}

/** All conversations, the one that changed last first. One that cannot be read is left out. */
export async function allChats(): Promise<KeptChat[]> {
  await takeLeft();
  const found = chats ? await values<KeptChat>(chats) : [];
  const all = readChats(written(found));
  return all.sort((one, other) => other.changed - one.changed);
}

/** One conversation as it is kept now; null where it is not. */
export async function chatOf(id: string): Promise<KeptChat | null> {
  const found = chats && (await get<KeptChat>(id, chats));
  return found ? read(found) ?? null : null;
}

/** What another version kept, or what was damaged, with every field checked. */
function read(kept: KeptChat): KeptChat | undefined {
  return readChats(written([kept]))[0];
}

/** Keep a conversation beside what other tabs kept of it; all that is kept of it now. */
export async function keepChat(chat: KeptChat): Promise<KeptChat> {
  let all = chat;
  if (chats) await update<KeptChat>(chat.id, (kept) => (all = merged(chat, kept && read(kept))), chats);
  tabs?.postMessage(chat.id);
  return all;
}

/** Forget a conversation with its tokens. */
export async function forgetChat(chat: KeptChat): Promise<void> {
  if (chats) await del(chat.id, chats);
  tabs?.postMessage(chat.id);
  for (const turn of chat.turns) await tokens?.("readwrite", (store) => promisifyRequest(store.delete(partsOf(turn.id))));
}

/** Hear of conversations that other tabs changed, by their ids. */
export function hear(take: (id: string) => void): void {
  tabs?.addEventListener("message", ({ data }) => take(String(data)));
}

/** Keep the tokens of an answer from one on, in parts of PART: the part that one is in is written anew. */
export async function keepTokens(turn: string, scored: readonly Scored[], from: number): Promise<void> {
  for (let part = Math.floor(from / PART); tokens && part * PART < scored.length; part += 1) {
    const key = part ? `${turn}/${String(part).padStart(6, "0")}` : turn;
    await set(key, scored.slice(part * PART, (part + 1) * PART), tokens);
  }
}

/** Keep at once what an answer has since it was last kept: for a page that closes, and waits for nothing. */
export function leave(chat: string, turn: Kept, from: number, scored: readonly Scored[]): void {
  try {
    localStorage.setItem(LEFT + turn.id, JSON.stringify({ chat, turn, from, scored }));
  } catch {
    // No room: what was kept some seconds ago remains.
  }
}

/** Put what closing pages left into their conversations. What cannot be read is let go. */
async function takeLeft(): Promise<void> {
  for (const key of leftKeys()) {
    await take(localStorage.getItem(key) ?? "null").catch(() => undefined);
    localStorage.removeItem(key); // else it would stand in the way of every start
  }
}

function leftKeys(): string[] {
  try {
    return Object.keys(localStorage).filter((each) => each.startsWith(LEFT));
  } catch {
    return []; // the browser lets the page keep nothing there
  }
}

async function take(text: string): Promise<void> {
  const left = JSON.parse(text) as Left | null;
  const kept = left && (await chatOf(left.chat));
  const turn = kept && read({ ...kept, turns: [left.turn] })?.turns[0];
  if (!turn) return;
  await keepChat({ ...kept, turns: [{ ...turn, parent: left.turn.parent }] });
  const before = await tokensOf(turn.id);
  const all = [...before.slice(0, left.from), ...left.scored];
  if (all.length > before.length) await keepTokens(turn.id, all, left.from);
}

/** The tokens of an answer; none where they were not kept. */
export async function tokensOf(turn: string): Promise<Scored[]> {
  const parts = await tokens?.("readonly", (store) => promisifyRequest<Scored[][]>(store.getAll(partsOf(turn))));
  return (parts ?? []).flat();
}

function partsOf(turn: string): IDBKeyRange {
  return IDBKeyRange.bound(turn, `${turn}/~`);
}
