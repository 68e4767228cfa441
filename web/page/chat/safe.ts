// The one place where text becomes HTML: what Markdown and the highlighter wrote, made safe.
import DOMPurify from "dompurify";

const TAGS = [
  ...["a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr"],
  ...["li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
];
const PLAIN = ["align", "class", "data-language", "data-tex", "rel", "start", "target"]; // no addresses

/** A fragment that holds text, links to elsewhere and plain structure: no script, picture, style or form. */
export function safe(html: string): DocumentFragment {
  return DOMPurify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", ...PLAIN],
    ADD_URI_SAFE_ATTR: PLAIN,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
    RETURN_DOM_FRAGMENT: true,
  });
}
