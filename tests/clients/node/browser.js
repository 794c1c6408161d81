// A browser with one open page: `browser.js CHROMIUM` opens page.html as http://localhost:8000/ and runs there what comes on
// standard input, a line of JSON each: `[script, argument...]`, the body of an async function of `given`; each is answered
// in a line. The page's server reads and writes files: those of the working directory, and by `?path=` any.

import { once } from "node:events";
import { createReadStream, createWriteStream } from "node:fs";
import { createServer } from "node:http";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { pipeline } from "node:stream/promises";

import { chromium } from "playwright-core";

const page_html = new URL("page.html", import.meta.url).pathname;
const server = createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://localhost");
  const path = searchParams.get("path") ?? (pathname === "/" ? page_html : resolve(pathname.slice(1)));
  try {
    if (request.method === "PUT") await pipeline(request, createWriteStream(path));
    else await pipeline(createReadStream(path), response);
  } catch {
    response.statusCode = 404;
  }
  response.end();
}).listen(0, "127.0.0.1");
await once(server, "listening");

const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: ["--disable-dev-shm-usage", `--host-resolver-rules=MAP localhost:8000 127.0.0.1:${server.address().port}`],
});
try {
  const page = await browser.newPage();
  await page.goto("http://localhost:8000/");
  for await (const line of createInterface({ input: process.stdin })) {
    const [script, ...given] = JSON.parse(line);
    try {
      const answer = await page.evaluate(`(async (given) => {${script}})(${JSON.stringify(given)})`);
      console.log(JSON.stringify({ answer: answer ?? null }));
    } catch (error) {
      console.log(JSON.stringify({ error: error.message }));
    }
  }
} finally {
  await browser.close();
  server.close();
  server.closeAllConnections();
}
