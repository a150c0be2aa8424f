// A producer of the host protocol: node publish.js '{"path": …, "frames": …, …}'
//
//   path          the agent's socket
//   frames        how many frames, every other one a DATA_BATCH
//   chunks        chunks of a DATA_BATCH
//   bytes         bytes of a chunk; each begins with its sequence in decimal digits and a blank
//   topic, partition   where to, if anywhere; then frames carry log sequences
//   checksum      whether payloads are sent with a checksum
//   producerId, producerEpoch, firstSequence, logSequence   who continues, and where
//
// Prints one JSON line: who it was, how many frames were accepted and failed, what was left of the
// credit. Frames that fail and may be sent again are sent again.
'use strict'

const net = require('node:net')
const { PAYLOAD_CRC, decode, encode } = require('./frames')
const { Books, footprint } = require('./books')

const AGENT_FRAME_BYTES_MAX = 65535
const LANE_FRAMES_MAX = 5
const DESCRIPTOR_BYTES = 4

class Producer {
  constructor(options) {
    this.options = { frames: 1, chunks: 3, bytes: 20, partition: 0, producerEpoch: 0, ...options }
    this.books = new Books()
    this.waiting = this.#make()
    this.accepted = 0
    this.failed = []
    this.pauseUntil = 0
    this.laneKnown = !this.options.topic
    this.buffer = Buffer.alloc(0)
  }

  run() {
    return new Promise((resolve, reject) => {
      this.resolve = resolve
      this.reject = reject
      this.socket = net.connect(this.options.path)
      this.socket.on('error', reject)
      this.socket.on('close', () => reject(new Error('the agent closed the connection')))
      this.socket.on('data', data => {
        try {
          this.#receive(data)
        } catch (error) {
          this.#finish(() => reject(error))
        }
      })
      this.#send({
        type: 'HELLO',
        version_min: 1,
        version_max: 1,
        client_name: 'node',
        producer_id: this.options.producerId === undefined ? undefined : BigInt(this.options.producerId),
        producer_epoch: this.options.producerEpoch,
        topics: this.options.topic ? [this.options.topic] : [],
      })
    })
  }

  // All frames, made before the first is sent, so that repetitions are the same.
  #make() {
    const { frames, chunks, bytes, topic, partition, checksum } = this.options
    let sequence = BigInt(this.options.firstSequence ?? 0)
    let records = this.options.logSequence ?? 0
    const made = []
    for (let number = 0; number < frames; number++) {
      const count = number % 2 ? chunks : 1
      const payloads = Array.from({ length: count }, (_, index) =>
        Buffer.from(`${sequence + BigInt(index)} `.padEnd(bytes, '.')))
      const header = { type: number % 2 ? 'DATA_BATCH' : 'DATA', first_sequence: sequence, event_count: BigInt(count) }
      if (number % 2) {
        header.count = count
        header.lengths = Buffer.alloc(DESCRIPTOR_BYTES * count)
        payloads.forEach((payload, index) => header.lengths.writeUInt32LE(payload.length, DESCRIPTOR_BYTES * index))
      }
      if (topic) Object.assign(header, { topic, partition, log_sequence: records })
      made.push({ header, payload: Buffer.concat(payloads), flags: checksum ? PAYLOAD_CRC : 0 })
      sequence += BigInt(count)
      records = (records + count) % 2 ** 31
    }
    return made
  }

  #send(header, payload, flags) {
    this.socket.write(encode(header, payload, flags))
  }

  #receive(data) {
    this.buffer = Buffer.concat([this.buffer, data])
    for (;;) {
      const frame = decode(this.buffer, AGENT_FRAME_BYTES_MAX)
      if (frame === null) break
      this.buffer = this.buffer.subarray(frame.size)
      this.#handle(frame.header)
    }
    this.#pump()
  }

  #handle(header) {
    if (header.type === 'HELLO_ACK') {
      if (!header.accepted) throw new Error(`refused: ${header.reason}`)
      this.identity = { producerId: header.producer_id, partitions: header.partition_counts ?? [] }
      this.granted = true
    }
    if (header.type === 'PING') this.#send({ type: 'PONG', token: header.token })
    if (header.type === 'DRAIN') throw new Error(`draining: ${header.reason}`)
    if (header.retry_after_ms) this.#pause(header.retry_after_ms)
    if (header.type === 'FAILED' && !header.count) throw new Error(`violation: ${header.reason}`)
    for (const { note } of this.books.heard(header)) this.#ended(note, header)
  }

  #ended(frame, header) {
    if (header.type === 'ACCEPTED') {
      this.accepted++
      this.laneKnown = true
    } else if (header.retryable) {
      this.waiting.push(frame)
      this.waiting.sort((a, b) => (a.header.first_sequence < b.header.first_sequence ? -1 : 1))
    } else {
      this.failed.push(header.reason)
      if (this.options.topic) this.#giveUp()
    }
  }

  // A gap in a lane: what was not sent yet could only go on under another epoch.
  #giveUp() {
    this.failed.push(...this.waiting.map(() => 'not sent: an earlier frame of the lane was given up'))
    this.waiting = []
  }

  #pause(milliseconds) {
    this.pauseUntil = Date.now() + milliseconds
    setTimeout(() => this.#pump(), milliseconds + 1).unref()
  }

  #mayGo(frame) {
    const lane = this.options.topic ? (this.laneKnown ? LANE_FRAMES_MAX : 1) : Infinity
    return this.books.inFlight.size < lane && this.books.fits(footprint(frame.header, frame.payload.length))
  }

  #pump() {
    while (this.granted && Date.now() >= this.pauseUntil && this.waiting.length && this.#mayGo(this.waiting[0])) {
      const frame = this.waiting.shift()
      this.books.sent(frame.header, frame.payload.length, frame)
      this.#send(frame.header, frame.payload, frame.flags)
    }
    if (this.granted && !this.waiting.length && !this.books.inFlight.size)
      this.#finish(() => this.resolve(this.#result()))
  }

  #result() {
    const { slots, events, bytes } = this.books.credit
    const { producerId, partitions } = this.identity
    return {
      producerId: String(producerId), partitions, accepted: this.accepted, failed: this.failed,
      credit: [slots, Number(events), bytes],
    }
  }

  #finish(end) {
    this.socket.removeAllListeners('close')
    this.socket.end(() => {})
    this.socket.destroy()
    end()
  }
}

new Producer(JSON.parse(process.argv[2])).run().then(
  result => console.log(JSON.stringify(result)),
  error => {
    console.log(JSON.stringify({ error: error.message }))
    process.exitCode = 1
  },
)
