// Conversations in this browser: nothing of them is kept on the server.
import { createStore, del, delMany, get, set, values, type UseStore } from "idb-keyval";

import type { Scored } from "../../core/chat";
import { readChats, written, type KeptChat } from "../../core/transfer";

// Two stores: all conversations are read at the start, tokens only of the one that is opened.
const chats = opened("cutaway-chats");
const tokens = opened("cutaway-tokens");

function opened(name: string): UseStore | null {
  return typeof indexedDB === "undefined" ? null : createStore(name, "all");
}

/** All conversations, the one that changed last first. One that cannot be read is left out. */
export async function allChats(): Promise<KeptChat[]> {
  const found = chats ? await values<KeptChat>(chats) : [];
  const read = readChats(written(found));
  return read.sort((one, other) => other.changed - one.changed);
}

/** Keep a conversation. */
export async function keepChat(chat: KeptChat): Promise<void> {
  if (chats) await set(chat.id, chat, chats);
}

/** Forget a conversation with its tokens. */
export async function forgetChat(chat: KeptChat): Promise<void> {
  if (chats) await del(chat.id, chats);
  if (tokens) await delMany(chat.turns.map((turn) => turn.id), tokens);
}

/** Keep the tokens of an answer. */
export async function keepTokens(turn: string, scored: Scored[]): Promise<void> {
  if (tokens && scored.length) await set(turn, scored, tokens);
}

/** The tokens of an answer; none where they were not kept. */
export async function tokensOf(turn: string): Promise<Scored[]> {
  return (tokens && (await get<Scored[]>(turn, tokens))) ?? [];
}
