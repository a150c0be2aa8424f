// Confluent's client of the schema registry for JavaScript behind a line protocol: one JSON call a
// line on standard input, one JSON answer a line on standard output. See compat/registry/remote.py
// for the other side.
'use strict'

const readline = require('node:readline')
const { createFileRegistry, createMutableRegistry, fromBinary, fromJson, toJson } =
  require('@bufbuild/protobuf')
const { FileDescriptorSetSchema } = require('@bufbuild/protobuf/wkt')
const sr = require('@confluentinc/schemaregistry')
const { Kafka, logLevel } = require('kafkajs')
const { version } = require('@confluentinc/schemaregistry/dist/package.json')

const READ_MS = 20000
const VALUE = sr.SerdeType.VALUE
let link
let client
let messages

function open(call) {
  link = call
  client = new sr.SchemaRegistryClient({ baseURLs: [call.registry], maxRetries: 0 })
  const set = fromBinary(FileDescriptorSetSchema, Buffer.from(call.descriptors, 'base64'))
  messages = createFileRegistry(set)
}

// Schemas, subjects and settings

const operations = {
  register: (c) => client.registerFullResponse(c.subject, c.schema, c.normalize ?? false),
  by_id: (c) => client.getBySubjectAndId(c.subject ?? '', c.schema_id, c.output),
  by_guid: (c) => client.getByGuid(c.guid),
  lookup: async (c) => {
    if (!c.deleted) return client.getIdFullResponse(c.subject, c.schema, c.normalize ?? false)
    const number = await client.getVersion(c.subject, c.schema, c.normalize ?? false, true)
    return client.getSchemaMetadata(c.subject, number, true)
  },
  versions: (c) => client.getAllVersions(c.subject),
  version: (c) => client.getSchemaMetadata(c.subject, c.version, c.deleted ?? false),
  latest: (c) => client.getLatestSchemaMetadata(c.subject),
  latest_with_metadata: (c) => client.getLatestWithMetadata(c.subject, c.metadata),
  subjects: () => client.getAllSubjects(),
  delete_version: (c) => client.deleteSubjectVersion(c.subject, c.version, c.permanent ?? false),
  delete_subject: (c) => client.deleteSubject(c.subject, c.permanent ?? false),
  compatible: (c) =>
    c.version === 'latest'
      ? client.testSubjectCompatibility(c.subject, c.schema)
      : client.testCompatibility(c.subject, c.version, c.schema),
  compatibility: (c) =>
    c.subject ? client.getCompatibility(c.subject) : client.getDefaultCompatibility(),
  set_compatibility: (c) =>
    c.subject
      ? client.updateCompatibility(c.subject, c.level)
      : client.updateDefaultCompatibility(c.level),
  config: (c) => (c.subject ? client.getConfig(c.subject) : client.getDefaultConfig()),
  set_config: (c) =>
    c.subject ? client.updateConfig(c.subject, c.config) : client.updateDefaultConfig(c.config),
  associations: (c) =>
    client.getAssociationsByResourceName(c.name, c.namespace, 'topic', [], null, 0, -1),
  associate: (c) => client.createAssociation(c.request),
  dissociate: (c) => client.deleteAssociations(c.resource_id, 'topic', null, true),
}

// Values

// The schemas of Avro have bytes in a field of this name alone.
const withToken = (value, convert) =>
  'token' in value ? { ...value, token: convert(value.token) } : value
const native = {
  AVRO: (value) => withToken(value, (token) => Buffer.from(token, 'base64')),
  PROTOBUF: (value, name) => fromJson(messages.getMessage(name), value),
  JSON: (value) => value,
}
const plain = {
  AVRO: (value) => withToken(value, (token) => token.toString('base64')),
  PROTOBUF: (value, name) => toJson(messages.getMessage(name), value),
  JSON: (value) => value,
}

function serializer(kind, options) {
  const conf = {
    autoRegisterSchemas: options.auto ?? true,
    useLatestVersion: options.latest ?? false,
    normalizeSchemas: options.normalize ?? false,
  }
  if (options.latest_with) conf.useLatestWithMetadata = options.latest_with
  if (options.use_id) conf.useSchemaId = options.use_id
  if (options.strategy) conf.subjectNameStrategyType = options.strategy
  if (options.header) conf.schemaIdSerializer = sr.HeaderSchemaIdSerializer
  if (kind === 'AVRO') return new sr.AvroSerializer(client, VALUE, conf)
  if (kind === 'JSON') return new sr.JsonSerializer(client, VALUE, { ...conf, validate: true })
  const registry = createMutableRegistry(messages.getMessage(options.message))
  return new sr.ProtobufSerializer(client, VALUE, { ...conf, registry })
}

async function serialized(c, values) {
  const used = serializer(c.kind, c.options)
  const made = []
  for (const value of values) {
    const headers = {}
    const given = native[c.kind](value, c.options.message)
    made.push({ value: await used.serialize(c.topic, given, headers), headers, partition: 0 })
  }
  return made
}

const deserializers = {
  AVRO: sr.AvroDeserializer,
  PROTOBUF: sr.ProtobufDeserializer,
  JSON: sr.JsonDeserializer,
}

function reader(kind, message, latest = false) {
  const conf = { useLatestVersion: latest, ...(kind === 'JSON' ? { validate: true } : {}) }
  const used = new deserializers[kind](client, VALUE, conf)
  return async (topic, payload, headers) =>
    plain[kind](await used.deserialize(topic, payload, headers), message)
}

function kafka() {
  return new Kafka({ brokers: link.bootstrap.split(','), logLevel: logLevel.NOTHING })
}

async function write(c) {
  const producer = kafka().producer()
  await producer.connect()
  try {
    await producer.send({ topic: c.topic, messages: await serialized(c, c.values) })
  } finally {
    await producer.disconnect()
  }
  return null
}

async function read(c) {
  const used = reader(c.kind, c.message)
  const found = Object.fromEntries(c.topics.map((topic) => [topic, []]))
  const consumer = kafka().consumer({ groupId: `registry-javascript-${process.pid}-${c.id}` })
  await consumer.connect()
  await consumer.subscribe({ topics: c.topics, fromBeginning: true })
  try {
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`read only ${JSON.stringify(found)}`)), READ_MS).unref()
      const each = async ({ topic, message }) => {
        found[topic].push(await used(topic, message.value, message.headers))
        if (c.topics.every((name) => found[name].length >= c.count)) resolve()
      }
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      const guarded = (record) => each(record).catch(reject)
      consumer.run({ eachMessage: guarded, autoCommit: false }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return found
}

Object.assign(operations, {
  name: () => `@confluentinc/schemaregistry ${version}`,
  open,
  write,
  read,
  serialize: async (c) => {
    const [{ value, headers }] = await serialized(c, [c.value])
    const pairs = Object.entries(headers).map(([key, raw]) => [key, raw.toString('base64')])
    return { payload: value.toString('base64'), headers: pairs }
  },
  deserialize: (c) => {
    const pairs = (c.headers ?? []).map(([key, raw]) => [key, Buffer.from(raw, 'base64')])
    const payload = Buffer.from(c.payload, 'base64')
    return reader(c.kind, c.message, c.latest)(c.topic, payload, Object.fromEntries(pairs))
  },
})

async function answer(call) {
  if (client) client.clearCaches()
  try {
    return { id: call.id, result: (await operations[call.op](call)) ?? null }
  } catch (error) {
    const code = error.errorCode ?? 0
    return { id: call.id, error: code, message: code ? error.message : String(error.stack) }
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`)
  }
  process.exit(0)
}

main()
