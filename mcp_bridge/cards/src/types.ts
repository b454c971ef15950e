/** What the server tells the card (`structuredContent` of `show_execution`), and what the card's parts tell each other. */
import type { McpUiHostCapabilities, McpUiHostContext } from "@modelcontextprotocol/ext-apps";

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Values = Record<string, unknown>;
/** JSON Schema as the server serves it: data, nothing in it is certain. */
export type Schema = Record<string, unknown>;

/** A content block of MCP: `text`, `image`, `audio`, `resource_link` or `resource`, or one yet unknown. */
export interface Block {
  type: string;
  text?: string;
  data?: string;
  mimeType?: string;
  [name: string]: unknown;
}

/** A `CallToolResult`. */
export interface ToolResult {
  content?: Block[];
  structuredContent?: Record<string, unknown>;
  isError?: boolean;
  _meta?: Record<string, unknown>;
}

export interface RunResult {
  media_type: string;
  characters: number;
  offset: number;
  part: string;
  /** Of the next part; null after the last one. `showResult` gets all parts as one; if it gets a number here, the
   * result is too large for the card, and `part` is its beginning. */
  next_offset: number | null;
}

export interface Question {
  message: string;
  schema?: Schema;
  url?: string;
}

export interface Approval {
  asked_by: string;
  tool: string;
  version: string;
  /** null if they are too large to be shown. */
  arguments: Record<string, unknown> | null;
  /** What an approver has changed. */
  changed?: { by: string; names: string[] };
  reason: string | null;
  requested_at: string;
  expires_at: string | null;
  needed: number;
  agreed: number;
  before: { runs: number; succeeded: number; last_at: string | null } | null;
  url: string | null;
}

export interface Execution {
  execution_id: string;
  tool: string;
  title: string | null;
  source: string | null;
  state: string;
  state_label: string;
  is_over: boolean;
  succeeded: boolean;
  /** 0 to 100. */
  progress: number | null;
  message: string | null;
  problems: string[];
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  /** The server's clock. */
  now: string;
  usual_seconds: number | null;
  timeline: { at: string; text: string }[];
  can_cancel: boolean;
  cancel_requested: boolean;
  questions: Record<string, Question>;
  approval: Approval | null;
  error: string | null;
  advice: string | null;
  result: RunResult | null;
  url: string | null;
}

/** What the form face shows: `structuredContent.form`. */
export interface FormRequest {
  name: string;
  title: string | null;
  description: string | null;
  schema: Schema;
  given: Values;
}

/** Sends the values of a form. The form is busy until it resolves, and shows why they were not taken; null: they were. */
export type Submit = (values: Values) => Promise<string | null>;

/** What parts of the card may ask of the host. */
export interface Host {
  capabilities: McpUiHostCapabilities;
  /** With the user's locale and time zone. */
  context: McpUiHostContext;
  /** Only addresses of the catalogue; false if the host did not open it. */
  openLink(url: string): Promise<boolean>;
  /** Only where `capabilities.downloadFile`; false if the host did not save it. */
  download(fileName: string, mediaType: string, text: string): Promise<boolean>;
}
