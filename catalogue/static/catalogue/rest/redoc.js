// ReDoc over our own description, without what it would fetch from its makers: a logo below the menu. Its search
// runs in a worker made of a text, which our pages do not allow.
const source = Object.getOwnPropertyDescriptor(HTMLImageElement.prototype, "src");
const setAttribute = Element.prototype.setAttribute;
const isForeign = (address) => new URL(address, location.href).origin !== location.origin;
Object.defineProperty(HTMLImageElement.prototype, "src", {
  ...source,
  set(address) {
    if (!isForeign(address)) source.set.call(this, address);
  },
});
HTMLImageElement.prototype.setAttribute = function (name, value) {
  if (name !== "src" || !isForeign(value)) setAttribute.call(this, name, value);
};
const container = document.getElementById("redoc");
Redoc.init(container.dataset.schema, { disableSearch: true, nativeScrollbars: true }, container);
