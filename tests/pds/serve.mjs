// Personal data servers with one directory of DIDs, in memory, all on loopback:
// node serve.mjs PDS_PORT PLC_PORT [PDS_PORT ...]. Packages are those of PDS_HOME.
import http from 'node:http'
import { mkdtempSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { randomBytes } from 'node:crypto'

const home = process.env.PDS_HOME ?? import.meta.dirname
const require = createRequire(join(home, 'package.json'))
const plc = require('@did-plc/lib')
const { PDS, envToCfg, envToSecrets } = require('@atproto/pds')

const [first, plcPort, ...others] = process.argv.slice(2).map(Number)
const ops = new Map() // did -> operations, oldest first
const directory = http.createServer(async (request, response) => {
  const [, did, ...rest] = decodeURIComponent(request.url).split('/')
  const send = (code, body) => {
    response.writeHead(code, { 'content-type': 'application/json' })
    response.end(JSON.stringify(body))
  }
  if (request.method === 'POST') {
    let text = ''
    for await (const chunk of request) text += chunk
    ops.set(did, [...(ops.get(did) ?? []), JSON.parse(text)])
    return send(200, {})
  }
  const log = ops.get(did)
  if (log === undefined) return send(404, { message: `DID not registered: ${did}` })
  if (rest[0] === 'log') return send(200, rest[1] === 'last' ? log.at(-1) : log)
  const data = plc.opToData(did, log.at(-1))
  send(200, rest[0] === 'data' ? data : await plc.formatDidDoc(data))
})
await new Promise((done) => directory.listen(plcPort, '127.0.0.1', done))

const folders = []
for (const port of [first, ...others]) {
  const data = mkdtempSync(join(tmpdir(), 'pds-'))
  folders.push(data)
  const env = {
    devMode: true, hostname: 'localhost', port, dataDirectory: data,
    blobstoreDiskLocation: join(data, 'blobs'), didPlcUrl: `http://localhost:${plcPort}`,
    serviceHandleDomains: ['.test'], inviteRequired: false, disableSsrfProtection: true,
    bskyAppViewUrl: 'http://localhost:1', bskyAppViewDid: 'did:web:localhost',
    jwtSecret: randomBytes(16).toString('hex'), adminPassword: 'admin', crawlers: [],
    rateLimitsEnabled: false,
    plcRotationKeyK256PrivateKeyHex: randomBytes(32).toString('hex'),
  }
  const pds = await PDS.create(envToCfg(env), envToSecrets(env))
  const listen = pds.app.listen.bind(pds.app)
  pds.app.listen = (chosen) => listen(chosen, '127.0.0.1') // else all addresses
  await pds.start()
}
const pds = [first, ...others].map((port) => `http://localhost:${port}`)
console.log(JSON.stringify({ pds, plc: `http://localhost:${plcPort}` }))
process.stdin.resume().on('end', () => { // ends with the process that started it
  for (const folder of folders) rmSync(folder, { recursive: true, force: true })
  process.exit(0)
})
