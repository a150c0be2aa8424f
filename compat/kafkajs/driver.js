// KafkaJS behind a line protocol: one JSON call a line on standard input, one JSON answer a line on
// standard output. See drivers/remote.py for the other side.
'use strict'

const fs = require('node:fs')
const readline = require('node:readline')
const kafkajs = require('kafkajs')
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = kafkajs
const snappy = require('snappyjs')
const lz4 = require('lz4js')
const fzstd = require('fzstd')
const { version } = require('kafkajs/package.json')

const WAIT_MS = 20000
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const XERIAL = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00])

// KafkaJS brings gzip; the rest are plug-ins. Snappy is sent raw, and read raw or framed.
function unframe(data) {
  if (!data.subarray(0, 8).equals(XERIAL)) return snappy.uncompress(data)
  const blocks = []
  for (let place = 16; place < data.length; ) {
    const size = data.readUInt32BE(place)
    blocks.push(snappy.uncompress(data.subarray(place + 4, place + 4 + size)))
    place += 4 + size
  }
  return Buffer.concat(blocks)
}
// lz4js writes frames with dependent blocks, which Apache Kafka refuses: a frame of our own, with
// independent blocks of at most 64 KiB; 0x82 is the checksum of these two descriptor bytes.
function frame(data) {
  const parts = [Buffer.from([0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82])]
  for (let place = 0; place < data.length; place += 65536) {
    const block = data.subarray(place, place + 65536)
    const packed = Buffer.alloc(lz4.compressBound(block.length))
    const size = lz4.compressBlock(block, packed, 0, block.length, new Uint32Array(1 << 16))
    const smaller = size > 0 && size < block.length
    const head = Buffer.alloc(4)
    head.writeUInt32LE(smaller ? size : (block.length | 0x80000000) >>> 0)
    parts.push(head, smaller ? packed.subarray(0, size) : block)
  }
  return Buffer.concat([...parts, Buffer.alloc(4)])
}
CompressionCodecs[CompressionTypes.Snappy] = () => ({
  compress: async encoder => Buffer.from(snappy.compress(encoder.buffer)),
  decompress: async data => Buffer.from(unframe(data)),
})
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => frame(encoder.buffer),
  decompress: async data => Buffer.from(lz4.decompress(data)),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async () => {
    throw new Error('no zstd encoder')
  },
  decompress: async data => Buffer.from(fzstd.decompress(data)),
})

const members = new Map()
let made = null

const text = value => (value === null || value === undefined ? null : value.toString('base64'))
const bytes = value => (value === null ? null : Buffer.from(value, 'base64'))

function connecting(options) {
  const protocol = options['security.protocol']
  const read = name => (options[name] === undefined ? undefined : fs.readFileSync(options[name]))
  const found = {}
  if (protocol?.endsWith('SSL')) {
    found.ssl = {
      ca: [read('ssl.ca.location')],
      cert: read('ssl.certificate.location'),
      key: read('ssl.key.location'),
    }
  }
  if (options.token !== undefined) {
    const oauthBearerProvider = async () => ({ value: options.token })
    found.sasl = { mechanism: 'oauthbearer', oauthBearerProvider }
  } else if (protocol?.startsWith('SASL')) {
    const login = { username: options['sasl.username'], password: options['sasl.password'] }
    found.sasl = { mechanism: options['sasl.mechanism'].toLowerCase(), ...login }
  }
  return found
}

function kafka(call, retries = 30) {
  return new Kafka({
    brokers: call.bootstrap.split(','),
    ...connecting(JSON.parse(process.env.CLIENT_OPTIONS || '{}')),
    logLevel: logLevel.NOTHING,
    connectionTimeout: 10000,
    retry: { initialRetryTime: 50, maxRetryTime: 500, retries },
  })
}

async function admin(call) {
  if (made === null) {
    made = kafka(call).admin()
    await made.connect()
  }
  return made
}

function toRecord(partition, message) {
  const headers = []
  for (const [name, value] of Object.entries(message.headers || {})) {
    for (const each of Array.isArray(value) ? value : [value]) headers.push([name, text(each)])
  }
  return {
    value: text(message.value),
    key: text(message.key),
    headers,
    timestamp: Number(message.timestamp),
    partition,
    offset: Number(message.offset),
  }
}

function toMessage(record) {
  const headers = {}
  for (const [name, value] of record.headers) {
    if (name in headers) headers[name] = [].concat(headers[name], bytes(value))
    else headers[name] = bytes(value)
  }
  return {
    value: bytes(record.value),
    key: bytes(record.key),
    headers,
    timestamp: String(record.timestamp),
    partition: record.partition,
  }
}

async function produce(call) {
  const producer = kafka(call).producer({
    idempotent: call.idempotent,
    maxInFlightRequests: 1,
    allowAutoTopicCreation: false,
  })
  await producer.connect()
  try {
    const sent = await producer.send({
      topic: call.topic,
      acks: -1,
      compression: CODECS[call.codec],
      messages: call.records.map(toMessage),
    })
    const next = new Map(sent.map(each => [each.partition, Number(each.baseOffset)]))
    return call.records.map(record => {
      const offset = next.get(record.partition)
      next.set(record.partition, offset + 1)
      return offset
    })
  } finally {
    await producer.disconnect()
  }
}

// KafkaJS has no reading outside a group: a group of its own, made to seek before it fetches.
async function consume(call) {
  const starts = new Map(call.starts)
  const seen = []
  const consumer = kafka(call).consumer({
    groupId: `reader-${call.topic}-${call.id}`,
    maxWaitTimeInMs: 100,
    allowAutoTopicCreation: false,
  })
  await consumer.connect()
  await consumer.subscribe({ topic: call.topic, fromBeginning: true })
  let finish
  const done = new Promise((resolve, reject) => {
    finish = resolve
    consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
  })
  done.catch(() => {})
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset }) => {
      for (const message of batch.messages) {
        const start = starts.get(batch.partition)
        if (start !== undefined && Number(message.offset) >= start) {
          seen.push(toRecord(batch.partition, message))
        }
        resolveOffset(message.offset)
      }
      if (seen.length >= call.count) finish()
    },
  })
  for (const [partition, offset] of starts) {
    consumer.seek({ topic: call.topic, partition, offset: String(offset) })
  }
  await Promise.race([done, new Promise(resolve => setTimeout(resolve, call.wait_ms).unref())])
  await consumer.disconnect()
  const unique = new Map(seen.map(each => [`${each.partition}/${each.offset}`, each]))
  return [...unique.values()]
}

async function memberOpen(call) {
  const member = { owned: [], revoked: new Set(), rebalances: 0, records: [], closing: false }
  member.consumer = kafka(call).consumer({
    groupId: call.group,
    sessionTimeout: call.session_ms,
    heartbeatInterval: call.heartbeat_ms,
    rebalanceTimeout: 20000,
    maxWaitTimeInMs: 100,
    allowAutoTopicCreation: false,
  })
  const { GROUP_JOIN, CRASH } = member.consumer.events
  member.consumer.on(CRASH, event => (member.failure = event.payload.error))
  member.consumer.on(GROUP_JOIN, event => {
    const now = event.payload.memberAssignment[call.topic] || []
    for (const each of member.owned) if (!now.includes(each)) member.revoked.add(each)
    member.owned = now
    member.rebalances += 1
  })
  await member.consumer.connect()
  await member.consumer.subscribe({ topic: call.topic, fromBeginning: true })
  await member.consumer.run({
    autoCommitInterval: 200,
    // A batch is short, so that a rebalance is seen soon.
    eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
      for (const message of batch.messages) {
        member.records.push(toRecord(batch.partition, message))
        resolveOffset(message.offset)
      }
      await heartbeat()
    },
  })
  members.set(call.id, member)
  return call.id
}

async function commit(call) {
  const consumer = kafka(call).consumer({ groupId: call.group, allowAutoTopicCreation: false })
  await consumer.connect()
  await consumer.subscribe({ topic: call.topic })
  let joined
  const ready = new Promise(resolve => (joined = resolve))
  // Before it fetches, KafkaJS drops commits without a word.
  consumer.on(consumer.events.FETCH_START, joined)
  await consumer.run({ autoCommit: false, eachMessage: async () => {} })
  await ready
  await consumer.commitOffsets(
    call.offsets.map(([partition, offset, metadata]) => ({
      topic: call.topic,
      partition,
      offset: String(offset),
      metadata,
    }))
  )
  await consumer.disconnect()
  return null
}

// KafkaJS gives up on a coordinator that is still loading its groups.
async function patiently(work) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await work()
    } catch (error) {
      if (tries === 20 || error.type !== 'NOT_COORDINATOR_FOR_GROUP') throw error
      await new Promise(resolve => setTimeout(resolve, 100))
    }
  }
}

const operations = {
  version: async () => version,
  produce,
  consume,
  commit,
  member_open: memberOpen,
  member_state: async call => {
    const member = members.get(call.member)
    if (member.failure && !member.failure.retriable) throw member.failure
    return {
      assignment: member.owned,
      rebalances: member.rebalances,
      revoked: [...member.revoked],
    }
  },
  member_records: async call => members.get(call.member).records,
  member_close: async call => {
    await members.get(call.member).consumer.disconnect()
    members.delete(call.member)
    return null
  },
  committed: async call => {
    const asked = { groupId: call.group, topics: [call.topic] }
    const found = await patiently(async () => (await admin(call)).fetchOffsets(asked))
    return found[0].partitions
      .filter(each => Number(each.offset) >= 0 && call.partitions.includes(each.partition))
      .map(each => [each.partition, Number(each.offset), each.metadata ?? ''])
  },
  offsets_at: async call => {
    const found = await (await admin(call)).fetchTopicOffsetsByTimestamp(call.topic, call.timestamp)
    return found
      .filter(each => call.partitions.includes(each.partition))
      .map(each => [each.partition, Number(each.offset)])
  },
  bounds: async call => {
    const found = await (await admin(call)).fetchTopicOffsets(call.topic)
    return found
      .filter(each => call.partitions.includes(each.partition))
      .map(each => [each.partition, Number(each.low), Number(each.high)])
  },
  create_topic: async call => {
    const configEntries = Object.entries(call.configs).map(([name, value]) => ({ name, value }))
    const made = await (await admin(call)).createTopics({
      topics: [{ topic: call.topic, numPartitions: call.partitions, configEntries }],
    })
    // KafkaJS answers false instead of throwing when the topic is there already.
    if (!made) throw Object.assign(new Error(call.topic), { type: 'TOPIC_ALREADY_EXISTS' })
    return null
  },
  delete_topic: async call => {
    // It asks again for a topic that is not there, too.
    const asked = kafka(call, 8).admin()
    await asked.connect()
    try {
      await asked.deleteTopics({ topics: [call.topic] })
    } finally {
      await asked.disconnect()
    }
    return null
  },
  topics: async call => {
    const found = await (await admin(call)).fetchTopicMetadata()
    return Object.fromEntries(found.topics.map(each => [each.name, each.partitions.length]))
  },
  create_partitions: async call =>
    (await admin(call)).createPartitions({
      topicPartitions: [{ topic: call.topic, count: call.total }],
    }),
  configs: async call => {
    const found = await (await admin(call)).describeConfigs({
      includeSynonyms: true,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: call.topic }],
    })
    const entries = found.resources[0].configEntries
    return Object.fromEntries(entries.map(each => [each.configName, each.configValue]))
  },
  alter_config: async call => {
    await (await admin(call)).alterConfigs({
      resources: [
        {
          type: ConfigResourceTypes.TOPIC,
          name: call.topic,
          configEntries: [{ name: call.key, value: call.value }],
        },
      ],
    })
    return null
  },
  delete_records: async call => {
    const partitions = call.offsets.map(([partition, offset]) => ({
      partition,
      offset: String(offset),
    }))
    // KafkaJS does not load the topic's metadata for this call, but does for this one.
    await (await admin(call)).fetchTopicOffsets(call.topic)
    await (await admin(call)).deleteTopicRecords({ topic: call.topic, partitions })
    return null
  },
  groups: async call => (await (await admin(call)).listGroups()).groups.map(each => each.groupId),
  describe_group: async call => {
    const found = (await (await admin(call)).describeGroups([call.group])).groups[0]
    return [found.state, found.members.length]
  },
  delete_group: async call => {
    await (await admin(call)).deleteGroups([call.group])
    return null
  },
  cluster: async call => {
    const found = await (await admin(call)).describeCluster()
    return [found.clusterId, found.brokers.length]
  },
}

// A KafkaJS error wraps others: the innermost one that has Kafka's name for itself.
function named(error) {
  const [part] = error.partitions || error.groups || error.errors || []
  const inner = error.cause || (part && (part.error || part))
  return inner ? named(inner) : error.type || error.name || 'Error'
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin })
  for await (const line of lines) {
    const call = JSON.parse(line)
    const answer = { id: call.id }
    try {
      answer.result = (await operations[call.op](call)) ?? null
    } catch (error) {
      answer.error = named(error)
      answer.message = String(error.message)
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
