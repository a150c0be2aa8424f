// Checks this implementation against the test vectors: node check.js FOLDER
// Prints one JSON line: how many vectors of each kind passed, and what failed.
'use strict'

const fs = require('node:fs')
const path = require('node:path')
const assert = require('node:assert/strict')
const { FIELDS, PAYLOAD_CRC, PAYLOAD_IN_RING, crc32c, decode, encode } = require('./frames')
const { Books, checkFromProducer } = require('./books')

const KINDS = new Map([...FIELDS.values()])

function load(name) {
  return JSON.parse(fs.readFileSync(path.join(process.argv[2], name), 'utf8'))
}

// A header as the vectors write it: 64 bits as text, bytes as hexadecimal, nothing that is a default
// without presence.
function described(header) {
  const found = {}
  for (const [name, value] of Object.entries(header)) {
    const kind = KINDS.get(name)
    const empty = value === 0 || value === 0n || value === false || value.length === 0
    if (empty && !kind.endsWith('?')) continue
    if (kind === 'format' && value === 'OPAQUE') continue
    if (kind.startsWith('u64') || kind.startsWith('i64'))
      found[name] = Array.isArray(value) ? value.map(String) : String(value)
    else found[name] = kind === 'bytes' ? value.toString('hex') : value
  }
  return found
}

function headerOf(fields) {
  const header = {}
  for (const [name, value] of Object.entries(fields)) {
    const kind = KINDS.get(name)
    if (kind === 'bytes') header[name] = Buffer.from(value, 'hex')
    else if (kind.startsWith('u64') || kind.startsWith('i64'))
      header[name] = Array.isArray(value) ? value.map(BigInt) : BigInt(value)
    else header[name] = value
  }
  return header
}

function checkFrame(vector, limit) {
  const data = Buffer.from(vector.hex, 'hex')
  const payload = Buffer.from(vector.payload ?? '', 'hex')
  for (let size = 0; size < data.length; size++) assert.equal(decode(data.subarray(0, size), limit), null)
  const frame = decode(Buffer.concat([data, Buffer.from('behind')]), limit)
  assert.equal(frame.size, data.length)
  assert.deepEqual(described(frame.header), vector.header)
  assert.equal(frame.flags, vector.flags)
  assert.deepEqual(frame.payload, frame.flags & PAYLOAD_IN_RING ? Buffer.alloc(0) : payload)
  if (frame.flags & PAYLOAD_CRC) {
    assert.equal(frame.payloadCrc.toString(16).padStart(8, '0'), vector.payload_crc)
    assert.equal(crc32c(payload), frame.payloadCrc)
  }
  if (vector.canonical ?? true)
    assert.equal(encode(headerOf(vector.header), payload, vector.flags).toString('hex'), vector.hex)
}

function refusal(action) {
  try {
    action()
  } catch (error) {
    return error.class ?? error.stack
  }
  return 'not refused'
}

function checkMalformed(vector, limit) {
  assert.equal(refusal(() => decode(Buffer.from(vector.hex, 'hex'), limit)), vector.class)
}

function checkViolation(vector, limit) {
  const inFlight = new Set()
  const frames = vector.hex.map(hex => decode(Buffer.from(hex, 'hex'), limit))
  const last = frames.pop()
  for (const frame of frames) {
    checkFromProducer(frame, { inFlight })
    inFlight.add(frame.header.first_sequence ?? 0n)
  }
  assert.equal(refusal(() => checkFromProducer(last, { inFlight })), vector.class)
}

function checkConversation(vector, limit) {
  const books = new Books()
  for (const step of vector.steps) {
    if (step.close) books.disconnected()
    else {
      checkFrame(step, limit)
      if (step.credit === undefined) continue
      const frame = decode(Buffer.from(step.hex, 'hex'), limit)
      if (step.from === 'agent') books.heard(frame.header)
      else if (frame.header.type.startsWith('DATA')) books.sent(frame.header, frame.payload.length)
    }
    if (step.credit === undefined) continue
    const { slots, events, bytes } = books.credit
    assert.deepEqual([slots, Number(events), bytes], step.credit, step.note)
    const sequences = [...books.inFlight.keys()].sort((a, b) => (a < b ? -1 : 1))
    assert.deepEqual(sequences.map(String), step.in_flight, step.note)
  }
}

const frames = load('frames.json')
const refused = load('refused.json')
const conversations = load('conversations.json')
const result = { passed: {}, failed: [] }
for (const [kind, vectors, limit, check] of [
  ['frames', frames.frames, frames.frame_bytes_max, checkFrame],
  ['malformed', refused.malformed, refused.frame_bytes_max, checkMalformed],
  ['violations', refused.violations, refused.frame_bytes_max, checkViolation],
  ['conversations', conversations.conversations, conversations.terms.frame_bytes_max, checkConversation],
]) {
  result.passed[kind] = 0
  for (const vector of vectors) {
    try {
      check(vector, limit)
      result.passed[kind]++
    } catch (error) {
      result.failed.push(`${kind} ${vector.name}: ${error.message}`)
    }
  }
}
console.log(JSON.stringify(result))
process.exitCode = result.failed.length ? 1 : 0
