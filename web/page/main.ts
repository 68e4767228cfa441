import { mount } from "svelte";

import App from "./App.svelte";
import "./page.css";
import "./chat/chat.css";

mount(App, { target: document.getElementById("app")! });
