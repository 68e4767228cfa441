// One turn of a conversation as the page shows it.
import type { Call, Timings } from "../../core/chat";
import type { Piece } from "../../core/pieces";
import { newId } from "../../core/transfer";
import type { Kept, Role } from "../../core/tree";

/** A question of the person, an answer of the model with its tokens and times, or a tool's result. */
export class Turn implements Kept {
  readonly id: string;
  readonly parent: string | null;
  readonly role: Role;
  text = $state("");
  reasoning = $state("");
  calls: Call[] = $state.raw([]);
  call = "";
  pieces: Piece[] = $state.raw([]);
  rest = $state("");
  finish: string | null = $state(null);
  timings: Timings | null = $state.raw(null);
  trace = $state("");
  fault = $state("");
  forkedAt = $state(-1); // the token that a person chose; -1 where none was

  constructor(role: Role, parent: string | null, text = "", id = newId()) {
    this.id = id;
    this.parent = parent;
    this.role = role;
    this.text = text;
  }

  /** A turn as it was kept; its tokens come later. */
  static from(kept: Kept): Turn {
    const turn = new Turn(kept.role, kept.parent, kept.text, kept.id);
    turn.reasoning = kept.reasoning ?? "";
    turn.calls = kept.calls ?? [];
    turn.call = kept.call ?? "";
    turn.finish = kept.finish ?? null;
    turn.timings = kept.timings ?? null;
    turn.trace = kept.trace ?? "";
    turn.fault = kept.fault ?? "";
    turn.forkedAt = kept.forkedAt ?? -1;
    turn.rest = kept.text;
    return turn;
  }

  /** Take in what another tab kept of it; whether that was new. */
  take(kept: Kept): boolean {
    if (kept.text === this.text && (kept.finish ?? null) === this.finish && (kept.fault ?? "") === this.fault) return false;
    const { text, rest, reasoning, calls, finish, timings, trace, fault } = Turn.from(kept);
    Object.assign(this, { text, rest, reasoning, calls, finish, timings, trace, fault, pieces: [] });
    return true;
  }

  /** The turn without its tokens. */
  kept(): Kept {
    const { id, parent, role, text } = this;
    return {
      ...{ id, parent, role, text },
      ...(this.reasoning && { reasoning: this.reasoning }),
      ...(this.calls.length && { calls: this.calls }),
      ...(this.call && { call: this.call }),
      ...(this.finish && { finish: this.finish }),
      ...(this.timings && { timings: this.timings }),
      ...(this.trace && { trace: this.trace }),
      ...(this.fault && { fault: this.fault }),
      ...(this.forkedAt >= 0 && { forkedAt: this.forkedAt }),
    };
  }
}
