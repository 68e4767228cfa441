// The one-file viewer: a trace stands in this very document, as base64 that nothing runs.
import { mount } from "svelte";

import "./page.css";
import Viewer from "./Viewer.svelte";

const text = document.getElementById("trace")!.textContent.trim();
const signs = atob(text);
const bytes = new Uint8Array(signs.length);
for (let at = 0; at < bytes.length; at += 1) bytes[at] = signs.charCodeAt(at);

mount(Viewer, { target: document.getElementById("app")!, props: { bytes } });
