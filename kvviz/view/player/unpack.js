// Text in a page back to bytes.

/** @param {string} base64 of gzip @returns {Promise<ArrayBuffer>} */
export async function unpack(base64) {
  return inflate(bytesOf(base64));
}

/** @param {Uint8Array<ArrayBuffer>} bytes  gzip @returns {Promise<ArrayBuffer>} */
export async function inflate(bytes) {
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** @param {string} base64 @returns {Uint8Array<ArrayBuffer>} */
function bytesOf(base64) {
  if ("fromBase64" in Uint8Array) return /** @type {any} */ (Uint8Array).fromBase64(base64); // ten times as fast
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  return bytes;
}
