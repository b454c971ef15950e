/** JSON-RPC with the host over `postMessage`: MCP Apps 2026-01-26. */
import type { McpUiHostContext, McpUiInitializeResult } from "@modelcontextprotocol/ext-apps";
import type { Host, ToolResult, Values } from "./types";

const PATIENCE_SECONDS = 15;
const PERSON_SECONDS = 300; // The host may ask the person first

export interface Listener {
  /** The host has answered; its context and capabilities are known. */
  ready(): void;
  silent(): void;
  toolInput(args: Values): void;
  toolResult(result: ToolResult): void;
  toolCancelled(reason: string): void;
  teardown(): void;
}

export interface Bridge extends Host {
  /** Also takes an answer that comes after `silent`. */
  connect(): void;
  /** Rejects with a message for people: the host's error, or that it did not answer. */
  callTool(name: string, args: Values, seconds?: number): Promise<ToolResult>;
  /** Says to the model what it should know with the person's next message. */
  tellModel(text: string): void;
}

interface Waiting {
  resolve(result: any): void;
  reject(error: Error): void;
  timer: number;
}

export function bridgeTo(listener: Listener): Bridge {
  const waiting = new Map<unknown, Waiting>();
  const root = document.documentElement;
  let lastId = 0;
  const bridge: Bridge = {
    capabilities: {},
    context: {},
    connect,
    callTool: async (name, args, seconds = PATIENCE_SECONDS) => (await request("tools/call", { name, arguments: args }, seconds)) ?? {},
    openLink: (url) => succeeds("ui/open-link", { url }),
    download: (fileName, mimeType, text) =>
      succeeds("ui/download-file", { contents: [{ type: "resource", resource: { uri: `file:///${fileName}`, mimeType, text } }] }),
    tellModel: (text) => void (bridge.capabilities.updateModelContext && succeeds("ui/update-model-context", { content: [{ type: "text", text }] })),
  };
  return bridge;

  function connect(): void {
    window.onmessage = ({ source, data }) => {
      if (source === window.parent && data?.jsonrpc === "2.0") receive(data);
    };
    const timer = setTimeout(listener.silent, PATIENCE_SECONDS * 1000);
    const params = { protocolVersion: "2026-01-26", appInfo: { name: "workflow-catalogue", version: "1" }, appCapabilities: {} };
    request("ui/initialize", params, 0).then(
      (answer: McpUiInitializeResult) => {
        clearTimeout(timer);
        bridge.capabilities = answer.hostCapabilities ?? {};
        take(answer.hostContext ?? {});
        send({ method: "ui/notifications/initialized" });
        new ResizeObserver(() => {
          const height = Math.ceil(document.body.getBoundingClientRect().height);
          send({ method: "ui/notifications/size-changed", params: { height } });
        }).observe(document.body);
        listener.ready();
      },
      () => {}, // As silent as one that does not answer
    );
  }

  /** 0 seconds: waits on. */
  function request(method: string, params: object, seconds: number): Promise<any> {
    const id = ++lastId;
    return new Promise((resolve, reject) => {
      const tooLate = () => receive({ id, error: { message: `This host has not answered within ${seconds} seconds.` } });
      waiting.set(id, { resolve, reject, timer: seconds && setTimeout(tooLate, seconds * 1000) });
      send({ id, method, params });
    });
  }

  async function succeeds(method: string, params: object): Promise<boolean> {
    try {
      return !(await request(method, params, PERSON_SECONDS))?.isError;
    } catch {
      return false;
    }
  }

  function send(message: object): void {
    window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  }

  function receive({ id, method, params = {}, result, error }: any): void {
    if (method === undefined) {
      const { resolve, reject, timer } = waiting.get(id) ?? {};
      waiting.delete(id);
      clearTimeout(timer);
      if (error) reject?.(Error(error.message ?? "This host refused."));
      else resolve?.(result);
    } else if (id === undefined) {
      notified(method.replace("ui/notifications/", ""), params);
    } else if (method === "ping" || method === "ui/resource-teardown") {
      if (method !== "ping") listener.teardown();
      send({ id, result: {} });
    } else {
      send({ id, error: { code: -32601, message: `No method ${method}` } });
    }
  }

  function notified(name: string, params: any): void {
    if (name === "tool-input") listener.toolInput(params.arguments ?? {});
    else if (name === "tool-result") listener.toolResult(params);
    else if (name === "tool-cancelled") listener.toolCancelled(params.reason ?? "");
    else if (name === "host-context-changed") take(params);
  }

  /** The host's looks; a change has only what is new. */
  function take(context: McpUiHostContext): void {
    Object.assign(bridge.context, context);
    const { theme, styles } = context;
    if (theme) root.style.colorScheme = theme;
    for (const [name, value] of Object.entries(styles?.variables ?? {})) {
      if (name.startsWith("--") && value) root.style.setProperty(name, value);
    }
    const fonts = styles?.css?.fonts;
    if (fonts) document.getElementById("fonts")!.textContent = fonts;
  }
}
