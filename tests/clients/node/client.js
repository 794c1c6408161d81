// An S3 client on Node: `client.js BUCKET` makes the calls that come on standard input, a line of JSON each:
// `["upload with client-s3", path, key, token]`, and answers each in a line. Endpoint and credentials come from the
// environment; an error is what the call's user would see.

import { createReadStream, createWriteStream } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { createInterface } from "node:readline";
import { pipeline } from "node:stream/promises";

import {
  CopyObjectCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  PutObjectCommand,
  S3Client,
  paginateListObjectsV2,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";

const [Bucket] = process.argv.slice(2);
const SMALL_BYTES = 16 << 20;

function client(token) {
  const s3 = new S3Client({ forcePathStyle: true });
  if (token !== undefined) {
    const addToken = (next) => (args) => {
      args.request.headers["X-Fencing-Token"] = token;
      return next(args);
    };
    s3.middlewareStack.add(addToken, { step: "build" });
  }
  return s3;
}

const calls = {
  // What streams is sent once, also when told to come again: small bodies go from memory.
  "upload with client-s3": async (path, Key, token) => {
    const { size } = await stat(path);
    const Body = size <= SMALL_BYTES ? await readFile(path) : createReadStream(path);
    await client(token).send(new PutObjectCommand({ Bucket, Key, Body, ContentLength: size }));
  },
  "stream with client-s3": async (path, Key, token) => {
    const { size } = await stat(path);
    const Body = createReadStream(path);
    await client(token).send(new PutObjectCommand({ Bucket, Key, Body, ContentLength: size }));
  },
  "upload with lib-storage": async (path, Key, token) => {
    const params = { Bucket, Key, Body: createReadStream(path) };
    await new Upload({ client: client(token), params }).done();
  },
  download: async (Key, path) => {
    const { Body } = await client().send(new GetObjectCommand({ Bucket, Key }));
    await pipeline(Body, createWriteStream(path));
  },
  copy: async (source, Key, token) => {
    const CopySource = `${Bucket}/${encodeURIComponent(source)}`;
    await client(token).send(new CopyObjectCommand({ Bucket, Key, CopySource }));
  },
  delete: async (Key, token) => {
    await client(token).send(new DeleteObjectCommand({ Bucket, Key }));
  },
  names: async (Prefix) => {
    const found = [];
    for await (const page of paginateListObjectsV2({ client: client() }, { Bucket, Prefix })) {
      found.push(...(page.Contents ?? []).map((one) => one.Key));
    }
    return found;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [call, ...given] = JSON.parse(line);
  try {
    console.log(JSON.stringify({ answer: (await calls[call](...given)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: `${error.name}: ${error.message}` }));
  }
}
