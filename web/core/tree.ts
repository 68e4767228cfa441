// A conversation as a tree: each turn has a parent, siblings are branches, one path is shown.
import type { Call, Message, Timings } from "./chat";

export type Role = "user" | "assistant" | "tool";

/** A turn as it is kept. The tokens of an answer are kept elsewhere: they are a hundred times its text. */
export interface Kept {
  id: string;
  parent: string | null;
  role: Role;
  text: string;
  reasoning?: string;
  calls?: Call[];
  call?: string; // of a tool's turn: the id of the call that it answers
  finish?: string | null;
  timings?: Timings | null;
  trace?: string;
  fault?: string;
  forkedAt?: number; // the token that a person chose
}

/** What has a place in the tree. */
export interface Placed {
  id: string;
  parent: string | null;
}

/** The turns from the first to a leaf. */
export function pathTo<T extends Placed>(turns: readonly T[], leaf: string | null): T[] {
  const byId = new Map(turns.map((turn) => [turn.id, turn]));
  const path: T[] = [];
  // A file may hold a circle; a path is never longer than there are turns.
  for (let id = leaf; id !== null && path.length < turns.length; ) {
    const turn = byId.get(id);
    if (!turn) break;
    path.push(turn);
    id = turn.parent;
  }
  return path.reverse();
}

/** The turns by their parent: those of one are branches of it, in the order in which they were made. */
export function byParent<T extends Placed>(turns: readonly T[]): Map<string | null, T[]> {
  const groups = new Map<string | null, T[]>();
  for (const turn of turns) {
    const group = groups.get(turn.parent);
    if (group) group.push(turn);
    else groups.set(turn.parent, [turn]);
  }
  return groups;
}

/** The leaf that lies under a turn when the newest branch is taken each time. */
export function leafUnder(turns: readonly Placed[], id: string): string {
  let leaf = id;
  for (let left = turns.length; left > 0; left -= 1) {
    const next = turns.findLast((turn) => turn.parent === leaf);
    if (!next) break;
    leaf = next.id;
  }
  return leaf;
}

/** What the server is told of a path; turns without a word are left out. */
export function messagesOf(system: string, path: readonly Kept[]): Message[] {
  const messages: Message[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of path) {
    if (turn.role === "tool") {
      messages.push({ role: "tool", content: turn.text, tool_call_id: turn.call ?? "" });
    } else if (turn.calls?.length) {
      const calls = turn.calls.map(({ id, name, arguments: given }) => ({
        id,
        type: "function" as const,
        function: { name, arguments: given },
      }));
      messages.push({ role: "assistant", content: turn.text || null, tool_calls: calls });
    } else if (turn.text) {
      messages.push({ role: turn.role, content: turn.text });
    }
  }
  return messages;
}

/** Calls of the last answer that no tool has answered yet. */
export function openCalls(path: readonly Kept[]): Call[] {
  const index = path.findLastIndex((turn) => turn.role === "assistant");
  const answered = new Set(path.slice(index + 1).map((turn) => turn.call));
  const isOver = path.slice(index + 1).some((turn) => turn.role === "user");
  return isOver ? [] : (path[index]?.calls ?? []).filter((call) => !answered.has(call.id));
}
