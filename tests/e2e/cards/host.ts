// A host of MCP Apps: calls a tool as a model would, shows the view that the tool names, and keeps what the
// view asks for in `host.record`. Options are the page's query; see tests/e2e/cards/hosts.py.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import type { CallToolResult, Tool } from '@modelcontextprotocol/client';
import {
  AppBridge,
  buildAllowAttribute,
  getToolUiResourceUri,
  PostMessageTransport,
  RESOURCE_MIME_TYPE,
} from '@modelcontextprotocol/ext-apps/app-bridge';
import type { McpUiHostCapabilities, McpUiHostContext, McpUiResourceMeta } from '@modelcontextprotocol/ext-apps/app-bridge';

const options = new URLSearchParams(location.search);
const option = (name: string, otherwise: string) => options.get(name) ?? otherwise;

const record = {
  contexts: [] as unknown[],
  messages: [] as unknown[],
  links: [] as string[],
  downloads: [] as unknown[],
  sizes: [] as unknown[],
  logs: [] as unknown[],
  calls: [] as string[],
  complaints: [] as unknown[],
  app: null as unknown,
};

const without = option('without', '').split(' ');
const everything: McpUiHostCapabilities = {
  openLinks: {},
  downloadFile: {},
  serverTools: {},
  serverResources: {},
  logging: {},
  updateModelContext: { text: {}, structuredContent: {} },
  message: { text: {} },
};
const capabilities = Object.fromEntries(
  Object.entries(everything).filter(([name]) => !without.includes(name)),
) as McpUiHostCapabilities;

const COLOURS = {
  light: { '--color-background-primary': '#ffffff', '--color-text-primary': '#1a1a19' },
  dark: { '--color-background-primary': '#262624', '--color-text-primary': '#faf9f5' },
};

function contextOf(tool: Tool): McpUiHostContext {
  const theme = option('theme', 'light') as 'light' | 'dark';
  return {
    theme,
    styles: { variables: COLOURS[theme] as never },
    displayMode: 'inline',
    availableDisplayModes: ['inline'],
    containerDimensions: { maxWidth: Number(option('width', '720')), maxHeight: 6000 },
    locale: option('locale', 'en-GB'),
    timeZone: 'Europe/Berlin',
    platform: 'web',
    toolInfo: { tool },
  };
}

const extension = { mimeTypes: [RESOURCE_MIME_TYPE] };
const client = new Client(
  { name: option('name', 'chat-of-the-tests'), version: '1' },
  {
    capabilities: option('cards', 'yes') === 'yes' ? { extensions: { 'io.modelcontextprotocol/ui': extension } } : {},
    versionNegotiation: { mode: option('era', 'auto') as 'auto' | 'legacy', probe: { timeoutMs: 100_000 } },
  },
);

let tools: Tool[] = [];
let bridge: AppBridge | undefined;
let iframe: HTMLIFrameElement | undefined;

async function connect(): Promise<void> {
  await client.connect(new StreamableHTTPClientTransport(new URL('/mcp', location.href)));
  let cursor: string | undefined;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor });
    tools.push(...page.tools);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
}

/** Only what the tool allows views to call, whatever the view asks for. */
async function callForView(params: { name: string; arguments?: Record<string, unknown> }): Promise<CallToolResult> {
  record.calls.push(params.name);
  if (option('mute', '') === 'tools') return new Promise(() => undefined);
  const tool = tools.find(({ name }) => name === params.name);
  const visibility = (tool?._meta?.ui as { visibility?: string[] } | undefined)?.visibility ?? ['model', 'app'];
  if (!tool || !visibility.includes('app')) throw new Error(`${params.name} is not a tool for views`);
  return (await client.request({ method: 'tools/call', params })) as CallToolResult;
}

function watched(html: string): string {
  // What a card must never cause: errors, refusals of its Content-Security-Policy, anything that is alerted.
  const watch = `<script>
    const complain = (kind, words) => parent.postMessage({ complaint: kind + ': ' + words }, '*');
    addEventListener('error', (event) => complain('error', event.message));
    addEventListener('unhandledrejection', (event) => complain('rejection', String(event.reason)));
    document.addEventListener('securitypolicyviolation', (event) =>
      complain('policy', event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sample));
    for (const name of ['alert', 'confirm', 'prompt', 'open', 'ranHostileScript'])
      window[name] = (...given) => complain('called', name + ' ' + given.join(' '));
  </script>`;
  return html.replace(/<head[^>]*>/, (found) => found + watch);
}

async function showView(tool: Tool, uri: string, given: Record<string, unknown>, answer: Promise<CallToolResult>) {
  const { contents } = await client.readResource({ uri });
  const [content] = contents;
  if (!content || !('text' in content) || content.mimeType !== RESOURCE_MIME_TYPE) throw new Error('not a view');
  const meta = (content._meta?.ui ?? {}) as McpUiResourceMeta;
  const frame = document.createElement('iframe');
  frame.id = 'sandbox';
  frame.title = 'Card';
  frame.style.width = `${option('width', '720')}px`;
  if (meta.prefersBorder) frame.style.cssText += 'border: 1px solid #dcdad4; border-radius: 12px; box-sizing: content-box';
  frame.setAttribute('sandbox', 'allow-scripts allow-same-origin allow-forms');
  const allow = buildAllowAttribute(meta.permissions);
  if (allow) frame.setAttribute('allow', allow);
  const policy = encodeURIComponent(JSON.stringify(meta.csp ?? {}));
  document.body.append(frame);
  iframe = frame;
  if (option('mute', '') === 'everything') return void loadAlone(frame, policy, content.text);

  const view = new AppBridge(null, { name: 'chat-of-the-tests', version: '1' }, capabilities, {
    hostContext: contextOf(tool),
  });
  bridge = view;
  view.oncalltool = callForView;
  view.onreadresource = ({ uri: asked }) => client.readResource({ uri: asked });
  view.onmessage = async (params) => (record.messages.push(params), {});
  view.onopenlink = async ({ url }) => (record.links.push(url), {});
  view.ondownloadfile = async (params) => (record.downloads.push(params), {});
  view.onupdatemodelcontext = async (params) => (record.contexts.push(params), {});
  view.addEventListener('loggingmessage', (params) => record.logs.push(params));
  view.addEventListener('requestteardown', () => void close(true));
  view.addEventListener('sizechange', (size) => {
    record.sizes.push(size);
    if (size.height) frame.style.height = `${size.height}px`;
  });
  view.addEventListener('sandboxready', () => {
    const sandbox = option('sandbox', 'allow-scripts');
    void view.sendSandboxResourceReady({ html: watched(content.text), sandbox, csp: meta.csp, permissions: meta.permissions });
  });
  view.addEventListener('initialized', async () => {
    record.app = view.getAppVersion();
    await view.sendToolInput({ arguments: given });
    try {
      await view.sendToolResult(await answer);
    } catch (error) {
      await view.sendToolCancelled({ reason: String(error) });
    }
  });
  await view.connect(new PostMessageTransport(frame.contentWindow!, frame.contentWindow!));
  frame.src = `${option('sandboxOrigin', '')}/sandbox?csp=${policy}`;
}

/** A host that puts the view into its page and then does not talk to it. */
function loadAlone(frame: HTMLIFrameElement, policy: string, html: string): void {
  addEventListener('message', ({ data, source }) => {
    if (source !== frame.contentWindow || data?.method !== 'ui/notifications/sandbox-proxy-ready') return;
    const params = { html: watched(html), sandbox: option('sandbox', 'allow-scripts') };
    frame.contentWindow!.postMessage({ jsonrpc: '2.0', method: 'ui/notifications/sandbox-resource-ready', params }, '*');
  });
  frame.style.height = '400px';
  frame.src = `${option('sandboxOrigin', '')}/sandbox?csp=${policy}`;
}

/** The words of the person that made the model call the tool. */
function say(words: string): void {
  const bubble = document.createElement('p');
  bubble.textContent = words;
  document.body.append(bubble);
}

async function call(name: string, given: Record<string, unknown>): Promise<CallToolResult> {
  const tool = tools.find((one) => one.name === name);
  if (!tool) throw new Error(`There is no tool ${name}`);
  const answer = client.callTool({ name, arguments: given }) as Promise<CallToolResult>;
  const uri = getToolUiResourceUri(tool);
  if (uri) await showView(tool, uri, given, answer);
  return answer;
}

/** Ends the view as the specification has it; a host may also keep its frame a while. */
async function close(remove: boolean): Promise<void> {
  await bridge?.teardownResource({}, { timeout: 2000 }).catch((error) => record.complaints.push(`teardown: ${error}`));
  if (remove) iframe?.remove();
}

function change(context: Partial<McpUiHostContext>): void {
  bridge?.sendHostContextChange(context);
}

addEventListener('message', ({ data }) => {
  if (data?.complaint) record.complaints.push(data.complaint);
});

Object.assign(window, {
  host: { record, call, close, change, say, tools: () => tools, version: () => client.getNegotiatedProtocolVersion() },
});
connect().then(
  () => (document.documentElement.dataset.state = 'ready'),
  (error) => {
    document.documentElement.dataset.state = 'failed';
    document.body.append(String(error));
  },
);
