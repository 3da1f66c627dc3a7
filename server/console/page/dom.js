// Building the page. Texts always become text nodes, so that nothing from the
// server is read as HTML; what is there already is changed in place, so that
// the focus and the place on the page stay where they are.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else attr(node, name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// An element with attributes, listeners ("onclick") and children (nodes or
// texts).
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

// null, undefined or false: without the attribute.
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

export function text(node, value) {
  const shown = String(value ?? "");
  if (node.textContent !== shown) node.textContent = shown;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// Makes `parent` hold a node for each item, in order. `make(item)` returns
// {node, update(item)}; nodes of items with the same key stay.
export function keyed(parent, items, keyOf, make) {
  const before = parent.keyedParts ?? new Map();
  const parts = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    const part = before.get(key) ?? make(item);
    part.update(item);
    parts.set(key, part);
    if (part.node === place) {
      place = place.nextElementSibling;
    } else {
      parent.insertBefore(part.node, place);
    }
  }
  for (const [key, part] of before) {
    if (!parts.has(key)) part.node.remove();
  }
  parent.keyedParts = parts;
}

export function byId(id) {
  return document.getElementById(id);
}

// For those who can't see what changed.
export function say(message) {
  text(byId("said"), message);
}
