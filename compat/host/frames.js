// Frames of the host protocol, written from docs/host-protocol.md alone: CRC32C, Protobuf varints and
// the prelude by hand, nothing but Node. Numbers of 64 bits are BigInt.
'use strict'

const PRELUDE_BYTES = 16
const HEADER_BYTES_MAX = 65535
const PAYLOAD_CRC = 1
const PAYLOAD_IN_RING = 2

const TYPES = [
  null, 'HELLO', 'HELLO_ACK', 'DATA', 'DATA_BATCH', 'ACCEPTED', 'FAILED', 'CREDIT_UPDATE', 'DRAIN', 'PING',
  'PONG',
]
const FORMATS = ['OPAQUE', 'RECORD_BATCH']

// number: [name, kind]; a kind that ends in ? has presence, one that ends in * repeats
const FIELDS = new Map([
  [1, ['type', 'type']], [2, ['first_sequence', 'u64']], [3, ['count', 'u32']],
  [4, ['event_count', 'u64']], [5, ['topic', 'text']], [6, ['partition', 'u32?']],
  [7, ['log_sequence', 'u32?']], [8, ['format', 'format']], [9, ['lengths', 'bytes']],
  [10, ['offsets', 'bytes']], [11, ['event_counts', 'bytes']], [12, ['ring_position', 'u64']],
  [13, ['ring_bytes', 'u32']], [14, ['ranges', 'u64*']], [15, ['reason', 'text']],
  [16, ['retryable', 'bool']], [17, ['retry_after_ms', 'u32']], [18, ['chunk_slots', 'u32']],
  [19, ['raw_events', 'u64']], [20, ['payload_bytes', 'u64']], [21, ['version_min', 'u32']],
  [22, ['version_max', 'u32']], [23, ['version', 'u32']], [24, ['accepted', 'bool']],
  [25, ['producer_id', 'i64?']], [26, ['producer_epoch', 'u32']], [27, ['topics', 'text*']],
  [28, ['partition_counts', 'u32*']], [29, ['client_name', 'text']], [30, ['ring_size_bytes', 'u64']],
  [31, ['frame_bytes_max', 'u32']], [32, ['idle_timeout_ms', 'u32']], [33, ['deadline_ms', 'u32']],
  [34, ['token', 'u64']],
  [35, ['fenced', 'bool']],
])

class Refused extends Error {
  constructor(reasonClass, message) {
    super(message)
    this.class = reasonClass
  }
}

// Checksum

const TABLE = new Uint32Array(256)
for (let byte = 0; byte < 256; byte++) {
  let crc = byte
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1
  TABLE[byte] = crc
}

function crc32c(data) {
  let crc = 0xffffffff
  for (const byte of data) crc = TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8)
  return (crc ^ 0xffffffff) >>> 0
}

// Protobuf

function varint(number) {
  let left = BigInt.asUintN(64, BigInt(number))
  const bytes = []
  while (left > 0x7fn) {
    bytes.push(Number(left & 0x7fn) | 0x80)
    left >>= 7n
  }
  bytes.push(Number(left))
  return Buffer.from(bytes)
}

function delimited(number, data) {
  return Buffer.concat([varint((number << 3) | 2), varint(data.length), data])
}

function encodeField(number, name, kind, value) {
  if (value === undefined) return Buffer.alloc(0)
  if (kind === 'text*') return Buffer.concat(value.map(text => delimited(number, Buffer.from(text))))
  if (kind.endsWith('*'))
    return value.length ? delimited(number, Buffer.concat(value.map(varint))) : Buffer.alloc(0)
  if (kind === 'text' || kind === 'bytes')
    return value.length ? delimited(number, Buffer.from(value)) : Buffer.alloc(0)
  if (kind === 'type') value = TYPES.indexOf(value)
  if (kind === 'format') value = FORMATS.indexOf(value)
  if (!kind.endsWith('?') && BigInt(value) === 0n) return Buffer.alloc(0)
  return Buffer.concat([varint(number << 3), varint(value)])
}

function encodeHeader(header) {
  const fields = [...FIELDS].map(([number, [name, kind]]) => encodeField(number, name, kind, header[name]))
  return Buffer.concat(fields)
}

class Reader {
  constructor(data) {
    this.data = data
    this.at = 0
  }

  get more() {
    return this.at < this.data.length
  }

  varint() {
    let value = 0n
    for (let index = 0; index < 10; index++) {
      if (this.at >= this.data.length) throw new Refused('header', 'a varint ends early')
      const byte = this.data[this.at++]
      value |= BigInt(byte & 0x7f) << BigInt(7 * index)
      if (byte < 0x80) return BigInt.asUintN(64, value)
    }
    throw new Refused('header', 'a varint of more than ten bytes')
  }

  take(size) {
    if (size > BigInt(this.data.length - this.at)) throw new Refused('header', 'a field ends early')
    const start = this.at
    this.at += Number(size)
    return this.data.subarray(start, this.at)
  }

  skip(wireType) {
    if (wireType === 0) this.varint()
    else if (wireType === 1) this.take(8n)
    else if (wireType === 2) this.take(this.varint())
    else if (wireType === 5) this.take(4n)
    else throw new Refused('header', `wire type ${wireType}`)
  }
}

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

function text(data) {
  try {
    return UTF8.decode(data)
  } catch {
    throw new Refused('header', 'text that is not UTF-8')
  }
}

function scalar(kind, value) {
  switch (kind.replace(/[?*]/, '')) {
    case 'u64':
      return value
    case 'i64':
      return BigInt.asIntN(64, value)
    case 'bool':
      return value !== 0n
    case 'type':
      return TYPES[Number(BigInt.asIntN(32, value))] ?? Number(BigInt.asIntN(32, value))
    case 'format':
      return FORMATS[Number(BigInt.asIntN(32, value))] ?? Number(BigInt.asIntN(32, value))
    default:
      return Number(BigInt.asUintN(32, value))
  }
}

function decodeHeader(data) {
  const header = {}
  const reader = new Reader(data)
  while (reader.more) {
    const tag = reader.varint()
    const number = Number(tag >> 3n)
    const wireType = Number(tag & 7n)
    if (number === 0) throw new Refused('header', 'field number 0')
    const [name, kind] = FIELDS.get(number) ?? []
    if (name === undefined) reader.skip(wireType)
    else if (kind === 'text' && wireType === 2) header[name] = text(reader.take(reader.varint()))
    else if (kind === 'bytes' && wireType === 2) header[name] = reader.take(reader.varint())
    else if (kind === 'text*' && wireType === 2) {
      ;(header[name] ??= []).push(text(reader.take(reader.varint())))
    } else if (kind.endsWith('*') && wireType === 2) {
      const packed = new Reader(reader.take(reader.varint()))
      const values = (header[name] ??= [])
      while (packed.more) values.push(scalar(kind, packed.varint()))
    } else if (kind.endsWith('*') && wireType === 0) {
      ;(header[name] ??= []).push(scalar(kind, reader.varint()))
    } else if (!kind.startsWith('text') && kind !== 'bytes' && wireType === 0) {
      header[name] = scalar(kind, reader.varint())
    } else reader.skip(wireType)
  }
  return header
}

// Frames

function encode(header, payload = Buffer.alloc(0), flags = 0) {
  const head = encodeHeader(header)
  if (head.length > HEADER_BYTES_MAX) throw new Error(`a header of ${head.length} bytes`)
  const inline = flags & PAYLOAD_IN_RING ? Buffer.alloc(0) : payload
  const prelude = Buffer.alloc(PRELUDE_BYTES)
  prelude.writeUInt32BE(head.length + inline.length, 0)
  prelude.writeUInt16BE(head.length, 4)
  prelude.writeUInt8(flags, 6)
  prelude.writeUInt32BE(crc32c(head), 8)
  prelude.writeUInt32BE(flags & PAYLOAD_CRC ? crc32c(payload) : 0, 12)
  return Buffer.concat([prelude, head, inline])
}

// The frame at the start of `data` and its size, or null when it is not whole.
function decode(data, frameBytesMax) {
  if (data.length < PRELUDE_BYTES) return null
  const frameLength = data.readUInt32BE(0)
  const headerLength = data.readUInt16BE(4)
  const flags = data[6]
  const payloadCrc = data.readUInt32BE(12)
  if (frameLength > frameBytesMax) throw new Refused('frame_length', `${frameLength} bytes`)
  if (headerLength === 0 || headerLength > frameLength)
    throw new Refused('header_length', `${headerLength} of ${frameLength} bytes`)
  if (flags & ~(PAYLOAD_CRC | PAYLOAD_IN_RING) || data[7] !== 0)
    throw new Refused('flags', `flags ${flags}, reserved byte ${data[7]}`)
  if (payloadCrc !== 0 && !(flags & PAYLOAD_CRC))
    throw new Refused('payload_crc_unannounced', 'a payload checksum without its flag')
  if (flags & PAYLOAD_IN_RING && headerLength !== frameLength)
    throw new Refused('ring_payload_on_stream', 'a payload on the stream and in the ring')
  const size = PRELUDE_BYTES + frameLength
  if (data.length < size) return null
  const head = data.subarray(PRELUDE_BYTES, PRELUDE_BYTES + headerLength)
  if (crc32c(head) !== data.readUInt32BE(8)) throw new Refused('header_crc', 'header checksum')
  const header = decodeHeader(head)
  const payload = data.subarray(PRELUDE_BYTES + headerLength, size)
  if (flags === PAYLOAD_CRC && crc32c(payload) !== payloadCrc)
    throw new Refused('payload_crc', 'payload checksum')
  return { header, payload, flags, payloadCrc, size }
}

module.exports = {
  FIELDS, FORMATS, PAYLOAD_CRC, PAYLOAD_IN_RING, PRELUDE_BYTES, Refused, TYPES, crc32c, decode, encode,
}
