// Does with OpenAI's own client what is asked on stdin, a JSON line each; answers on stdout, a JSON line each.

import { createInterface } from 'node:readline';

import OpenAI from 'openai';
import { ChatCompletionStream } from 'openai/lib/ChatCompletionStream';
import { makeParseableResponseFormat } from 'openai/lib/parser';

const parseable = makeParseableResponseFormat(
  { type: 'json_schema', json_schema: { name: 'found', strict: true, schema: { type: 'object' } } },
  (text) => JSON.parse(text),
);

async function collect(iterable) {
  const out = [];
  for await (const item of iterable) out.push(item);
  return out;
}

// The tools that a runner calls: their answers are long enough to be moved out.
function runnable(called) {
  const lines = (word) => Array.from({ length: 60 }, (_, at) => `${word} ${at + 1} is a line of a large text`).join('\n');
  return ['read_file', 'search'].map((name) => ({
    type: 'function',
    function: {
      name,
      parse: JSON.parse,
      parameters: { type: 'object', properties: { path: { type: 'string' } } },
      function: ({ path }) => {
        called.push([name, path]);
        return lines(path);
      },
    },
  }));
}

async function told(runner, called) {
  const content = await runner.finalContent();
  return { called, content, messages: runner.messages, usage: await runner.totalUsage() };
}

const scenarios = {
  create: (client, fields) => client.chat.completions.create(fields),

  iterate: async (client, fields) => collect(await client.chat.completions.create({ ...fields, stream: true })),

  async stream(client, fields) {
    const stream = client.chat.completions.stream(fields);
    const seen = { chunks: 0, content: '', calls: [], finished: [] };
    stream.on('chunk', () => (seen.chunks += 1));
    stream.on('content.delta', ({ delta }) => (seen.content += delta));
    stream.on('tool_calls.function.arguments.done', ({ name, arguments: text }) => seen.finished.push([name, text]));
    stream.on('functionToolCall', (call) => seen.calls.push(call.name));
    const completion = await stream.finalChatCompletion();
    return { seen, completion, message: await stream.finalMessage() };
  },

  // As a server does that passes a stream on to a browser.
  async passOn(client, fields) {
    const stream = await client.chat.completions.create({ ...fields, stream: true });
    return ChatCompletionStream.fromReadableStream(stream.toReadableStream()).finalChatCompletion();
  },

  async runTools(client, fields) {
    const called = [];
    return told(client.chat.completions.runTools({ ...fields, tools: runnable(called) }), called);
  },

  async runToolsStreamed(client, fields) {
    const called = [];
    return told(client.chat.completions.runTools({ ...fields, stream: true, tools: runnable(called) }), called);
  },

  parse: async (client, fields) => {
    const completion = await client.chat.completions.parse({ ...fields, response_format: parseable });
    return completion.choices[0].message.parsed;
  },

  parseStreamed: async (client, fields) => {
    const completion = await client.chat.completions.stream({ ...fields, response_format: parseable }).finalChatCompletion();
    return completion.choices[0].message.parsed;
  },

  async response(client, fields) {
    const { data, response, request_id: id } = await client.chat.completions.create(fields).withResponse();
    return { data, id, status: response.status, headers: Object.fromEntries(response.headers) };
  },

  models: async (client) => [await collect(await client.models.list()), await client.models.retrieve('m/1')],

  embeddings: (client) => client.embeddings.create({ model: 'e', input: ['a', 'b'] }),

  // Leaves a stream after its first text.
  async leave(client, fields) {
    const stream = await client.chat.completions.create({ ...fields, stream: true });
    let said = '';
    for await (const chunk of stream) {
      said += chunk.choices[0]?.delta.content ?? '';
      if (said) break;
    }
    return said;
  },

  // Aborts a request that has not been answered.
  async abort(client, fields) {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 300);
    return client.chat.completions.create(fields, { signal: controller.signal });
  },
};

function describe(error) {
  const { status, code, param, type, requestID, error: body, message } = error;
  return { name: error.constructor.name, status, code, param, type, requestID, body, message };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { scenario, baseURL, apiKey, maxRetries, fields } = JSON.parse(line);
  const client = new OpenAI({ baseURL, apiKey, maxRetries });
  let answer;
  try {
    answer = { value: await scenarios[scenario](client, fields) };
  } catch (error) {
    answer = { error: describe(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
