// The one-file viewer: a trace stands in this very document, as base64 that nothing runs.
import { mount } from "svelte";

import "./page.css";
import Viewer from "./Viewer.svelte";

const text = document.getElementById("trace")!.textContent.trim();
const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

mount(Viewer, { target: document.getElementById("app")!, props: { bytes } });
