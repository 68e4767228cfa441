// The rooms beside chat and cutaway, and how the address bar names them: #/room/<name>.
// The tour's chapter stands behind its name: #/room/tour-e.

export const ROOMS = [
  { id: "follow", name: "Follow one token", about: "A film of how this model makes the next piece of its answer, with the numbers of this run." },
  { id: "tour", name: "Tour", about: "From your question to the answer, stage by stage, with the numbers of this run." },
  { id: "lab", name: "Sampling lab", about: "Turn every knob on a row that this answer was drawn from." },
  { id: "levers", name: "Levers", about: "Change one thing of this answer, and read what that did." },
  { id: "engine", name: "Engine", about: "What the engine holds at this moment: pages, batch and queue." },
  { id: "bpe", name: "Learn a vocabulary", about: "Watch byte pairs become tokens, one merge at a time." },
  { id: "training", name: "Training", about: "Models as they learn: the runs of this machine, curve by curve, live." },
  { id: "open", name: "Open a trace", about: "An answer in a file, looked into without a server." },
] as const;

export type Room = (typeof ROOMS)[number]["id"];

/** The room that a hash names: it stands in front of whatever place follows. */
export function roomOf(hash: string): Room | null {
  const [, name] = /^#\/room\/([a-z]+)/.exec(hash) ?? [];
  return ROOMS.find((room) => room.id === name)?.id ?? null;
}

/** The name in a hash that names a room, but none that there is; else null. */
export function unknownRoom(hash: string): string | null {
  const [, name] = /^#\/room\/([^/]{1,40})/.exec(hash) ?? [];
  return name === undefined || roomOf(hash) !== null ? null : name;
}

/** The hash of a room that keeps the place behind it. */
export function hashOfRoom(room: Room | null, hash: string): string {
  const place = hash.replace(/^#\/room\/[^/]*/, "#").replace(/^#\/?$/, "");
  return room === null ? place : `#/room/${room}${place.slice(1)}`;
}

/** The chapter that a hash names; null for none. */
export function chapterIn(hash: string): string | null {
  return /^#\/room\/tour-([a-z])(?![^/])/.exec(hash)?.[1] ?? null;
}

/** The hash of a chapter that keeps the place behind it. */
export function hashOfChapter(id: string, hash: string): string {
  return hashOfRoom("tour", hash).replace("#/room/tour", `#/room/tour-${id}`);
}

/** The hash of a place, in the room that one is in. */
export function hashHere(place: string, now: string): string {
  const room = /^#\/room\/[^/]+/.exec(now)?.[0];
  return room === undefined ? place : room + place.slice(1);
}
