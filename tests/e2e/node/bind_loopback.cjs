// Loaded before a server that can only listen on all interfaces: it listens on loopback instead.

const { Server } = require('node:net');

const { listen } = Server.prototype;
Server.prototype.listen = function listenOnLoopback(where, ...rest) {
  if (typeof where !== 'object') return listen.call(this, { port: Number(where), host: '127.0.0.1' }, ...rest.filter((one) => typeof one === 'function'));
  return listen.call(this, { ...where, host: '127.0.0.1' }, ...rest);
};
