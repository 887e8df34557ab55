// Bundles the page. Runs in Node.
import { build } from 'esbuild';
import { fileURLToPath } from 'node:url';
import path from 'node:path';

const here = path.dirname(fileURLToPath(import.meta.url));

export async function bundle(folder) {
  await build({
    entryPoints: ['page/main.jsx'],
    outdir: folder,
    absWorkingDir: here,
    bundle: true,
    format: 'esm',
    splitting: true,
    jsx: 'automatic',
    logLevel: 'error',
    loader: { '.woff2': 'file', '.svg': 'dataurl', '.ttf': 'empty' },
    define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
    alias: {
      // Optional, and from outside the registry's reach of what is drawn.
      '@grafana/assistant': path.join(here, 'page/nothing.js'),
      'react-router-dom-v5-compat': 'react-router-dom',
    },
  });
}
