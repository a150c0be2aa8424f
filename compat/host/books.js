// What both sides must know without any I/O: a producer's credit and frames under way, and what an
// agent refuses of a producer. Written from docs/host-protocol.md alone.
'use strict'

const { FORMATS, PAYLOAD_IN_RING, Refused } = require('./frames')

const EVENTS_MAX = 2n ** 31n - 1n
const SEQUENCES_END = 2n ** 63n - 1n
const TARGET_MAX = 2 ** 31 - 1
const CHUNKS_MAX = 4096

function footprint(header, payloadBytes) {
  return { slots: header.type === 'DATA' ? 1 : header.count, events: header.event_count ?? 0n, bytes: payloadBytes }
}

// The producer's books. Sequences are BigInt, like all numbers of 64 bits.
class Books {
  constructor() {
    this.disconnected()
  }

  disconnected() {
    const lost = [...(this.inFlight?.values() ?? [])]
    this.credit = { slots: 0, events: 0n, bytes: 0 }
    this.inFlight = new Map()
    return lost
  }

  fits(need) {
    const { slots, events, bytes } = this.credit
    return need.slots <= slots && need.events <= events && need.bytes <= bytes
  }

  sent(header, payloadBytes, note) {
    const taken = footprint(header, payloadBytes)
    if (!this.fits(taken)) throw new Error('sent beyond the credit')
    this.#add({ slots: -taken.slots, events: -taken.events, bytes: -taken.bytes })
    this.inFlight.set(header.first_sequence ?? 0n, { taken, note })
  }

  // Takes an answer in and returns the frames that it answers.
  heard(header) {
    switch (header.type) {
      case 'HELLO_ACK':
      case 'CREDIT_UPDATE':
        this.#add(restored(header))
        return []
      case 'ACCEPTED':
        return this.#accepted(header.ranges ?? [])
      case 'FAILED':
        if (!header.count) return []
        return [this.#failed(header)]
      default:
        return []
    }
  }

  #accepted(ranges) {
    const done = []
    for (let index = 0; index < ranges.length; index += 2) {
      let sequence = ranges[index]
      const end = sequence + ranges[index + 1]
      while (sequence < end) {
        const frame = this.#settle(sequence)
        done.push(frame)
        sequence += BigInt(frame.taken.slots)
      }
    }
    return done
  }

  #failed(header) {
    const frame = this.#settle(header.first_sequence ?? 0n)
    const { slots, events, bytes } = restored(header)
    const { taken } = frame
    if (slots !== taken.slots || events !== taken.events || bytes !== taken.bytes)
      throw new Error('the agent restored another footprint')
    return frame
  }

  #settle(sequence) {
    const frame = this.inFlight.get(sequence)
    if (frame === undefined) throw new Error(`sequence ${sequence} is not under way`)
    this.inFlight.delete(sequence)
    this.#add(frame.taken)
    return frame
  }

  #add(more) {
    this.credit = {
      slots: this.credit.slots + more.slots,
      events: this.credit.events + more.events,
      bytes: this.credit.bytes + more.bytes,
    }
  }
}

function restored(header) {
  return {
    slots: header.chunk_slots ?? 0,
    events: header.raw_events ?? 0n,
    bytes: Number(header.payload_bytes ?? 0n),
  }
}

function words(data, count, what) {
  if ((data?.length ?? 0) !== 4 * count) throw new Refused('descriptors', `${what} of ${count} chunks`)
  return Array.from({ length: count }, (_, index) => data.readUInt32LE(4 * index))
}

const sum = numbers => numbers.reduce((total, number) => total + number, 0)

function checkBatch(header, payloadBytes) {
  const count = header.count ?? 0
  if (count < 1 || count > CHUNKS_MAX) throw new Refused('chunk_count', `${count} chunks`)
  const lengths = words(header.lengths, count, 'lengths')
  if (header.offsets?.length) {
    const offsets = words(header.offsets, count, 'offsets')
    if (offsets.some((offset, index) => offset + lengths[index] > payloadBytes))
      throw new Refused('payload_size', 'a chunk ends behind the payload')
  } else if (sum(lengths) !== payloadBytes) {
    throw new Refused('payload_size', `${sum(lengths)} bytes of chunks in ${payloadBytes}`)
  }
  const events = header.event_counts?.length ? sum(words(header.event_counts, count, 'events')) : count
  if (BigInt(events) !== (header.event_count ?? 0n)) throw new Refused('event_count', `${events} events`)
}

// Throws Refused when an agent must end the connection because of this frame of a producer that it has
// taken in. `inFlight` has the first sequences of unanswered frames, `ringBytes` is 0 without a ring.
function checkFromProducer(frame, { inFlight = new Set(), ringBytes = 0 } = {}) {
  const { header } = frame
  if (header.type === 'PING' || header.type === 'PONG') return
  if (header.type !== 'DATA' && header.type !== 'DATA_BATCH') throw new Refused('frame_type', `${header.type}`)
  if (header.type === 'DATA') {
    const descriptors = [header.lengths, header.offsets, header.event_counts]
    if ((header.count ?? 0) > 1 || descriptors.some(each => each?.length))
      throw new Refused('data_fields', 'several chunks in a DATA frame')
  }
  let payloadBytes = frame.payload.length
  if (frame.flags & PAYLOAD_IN_RING) {
    payloadBytes = header.ring_bytes ?? 0
    if ((header.ring_position ?? 0n) + BigInt(payloadBytes) > BigInt(ringBytes))
      throw new Refused('ring', 'a place that is not in a ring')
  }
  if (header.type === 'DATA_BATCH') checkBatch(header, payloadBytes)
  const first = header.first_sequence ?? 0n
  const count = header.type === 'DATA' ? 1n : BigInt(header.count)
  if (inFlight.has(first) || first + count > SEQUENCES_END) throw new Refused('sequence', `${first}`)
  if ((header.event_count ?? 0n) > EVENTS_MAX) throw new Refused('event_limit', `${header.event_count}`)
  if ((header.partition ?? 0) > TARGET_MAX || (header.log_sequence ?? 0) > TARGET_MAX)
    throw new Refused('target', `${header.partition}, ${header.log_sequence}`)
  if (!FORMATS.includes(header.format ?? 'OPAQUE')) throw new Refused('format', `${header.format}`)
}

module.exports = { Books, checkFromProducer, footprint }
